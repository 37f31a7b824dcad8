"""Videos and cameras: regions followed over time, one phrase for each."""

SUFFIXES = frozenset((".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts", ".ogv"))
"""Files with these endings are taken for videos."""
