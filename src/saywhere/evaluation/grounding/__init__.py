"""Phrases found in images."""
