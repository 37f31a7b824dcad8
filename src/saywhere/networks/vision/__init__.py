"""Where: feature maps and areas of an image."""
