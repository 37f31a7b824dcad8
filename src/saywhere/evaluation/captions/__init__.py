"""Captions of whole images."""
