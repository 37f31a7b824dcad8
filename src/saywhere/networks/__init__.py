"""Torch modules that are trained, and their losses."""
