"""The options of networks, importable without torch."""
