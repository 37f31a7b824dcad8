"""How good answers are: the metrics of the papers, for the output of any program."""
