"""The captioner network, its losses and its reward."""
