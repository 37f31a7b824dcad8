"""Phrases of given boxes against those of people (Alignments, Table 3)."""
