"""Modules for other programs to import: CVAT and FiftyOne."""
