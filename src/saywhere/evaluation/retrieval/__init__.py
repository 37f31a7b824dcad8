"""Images retrieved by phrases of their regions."""
