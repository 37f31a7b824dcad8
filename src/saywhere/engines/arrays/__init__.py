"""Layers of the networks in NumPy, for engines without torch; weights have the names of torch's modules."""
