"""Files of other programs, a module each."""
