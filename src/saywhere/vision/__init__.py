"""Where: feature maps and areas of a picture."""
