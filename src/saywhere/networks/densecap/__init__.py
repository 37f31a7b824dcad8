"""The DenseCap network and its losses."""
