"""Engines, which run a model's networks behind one protocol."""
