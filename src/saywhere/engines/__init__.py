"""Engines: what runs a model's networks, behind one protocol."""
