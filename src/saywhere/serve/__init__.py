"""The HTTP interface to a model's questions, and the web page that uses it."""
