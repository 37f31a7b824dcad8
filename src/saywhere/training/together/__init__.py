"""All parts of a model and the end of its backbone, trained together."""
