"""The model and its methods for users, in NumPy, independent of the engine."""
