"""What is trained: torch modules and their losses."""
