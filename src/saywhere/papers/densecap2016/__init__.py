"""The published DenseCap program (2016): its conventions, checkpoints, intermediate results and evaluator."""
