"""Real file formats, read into one Sample type."""
