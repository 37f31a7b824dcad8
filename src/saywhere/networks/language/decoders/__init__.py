"""Decoders: language models that are conditioned on embeddings of regions or images."""
