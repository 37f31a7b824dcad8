"""The systems, each composed of vision and language."""
