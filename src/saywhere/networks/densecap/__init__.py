"""DenseCap: the network, its loss, and the published program's checkpoints."""
