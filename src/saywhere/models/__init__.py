"""What a user holds: a model and its verbs, in numpy, the same for every engine."""
