"""Decoders: language models conditioned on embeddings of regions or images."""
