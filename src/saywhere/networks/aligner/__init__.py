"""The aligner: its network, its score and its losses."""
