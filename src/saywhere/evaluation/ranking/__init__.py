"""Sentences and images ranked for each other."""
