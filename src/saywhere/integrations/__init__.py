"""Modules that other programs import: CVAT and FiftyOne."""
