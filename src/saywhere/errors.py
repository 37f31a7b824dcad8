"""The error that a user can cause and mend."""


class UserError(ValueError):
    """One line that names the file, the value and the way out; the command line prints it and exits with 2."""
