"""Words: decoders from embeddings to words, and the encoder from words to vectors."""
