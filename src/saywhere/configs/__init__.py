"""Configuration of the networks, importable without torch."""
