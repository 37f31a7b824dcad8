"""Vision networks: feature maps and image regions."""
