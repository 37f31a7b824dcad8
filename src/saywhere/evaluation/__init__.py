"""How good answers are: the metrics of the papers, for any program's output."""
