"""What: words from areas, and areas from words."""
