"""Layers of the networks in numpy, for engines that have no torch; weights are named as torch's modules name them."""
