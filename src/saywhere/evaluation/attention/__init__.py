"""Attention correctness."""
