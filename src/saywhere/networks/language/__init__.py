"""Language networks: decoders that turn embeddings into words."""
