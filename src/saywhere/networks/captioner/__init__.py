"""The captioner: its network, its losses and its reward."""
