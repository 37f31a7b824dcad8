"""Reproductions of published programs and tables, needed for nothing else: nothing outside imports them."""
