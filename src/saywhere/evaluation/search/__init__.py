"""Images found by sentences in an index, and regions found by phrases."""
