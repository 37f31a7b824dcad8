"""Recipes of several stages: from data sets to a model folder with its card, in one resumable run."""
