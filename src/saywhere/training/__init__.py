"""Training runs: recipes, the loop, resume."""
