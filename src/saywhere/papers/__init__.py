"""What reproduces a published program or table, and is needed for nothing else: nothing outside imports it."""
