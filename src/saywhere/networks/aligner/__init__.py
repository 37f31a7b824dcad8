"""The aligner network, its image-sentence score and its losses."""
