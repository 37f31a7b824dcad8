"""Right nouns: what regions are called when their boxes are given."""
