"""Describing many pictures: find them, read ahead, ask the model in batches, keep what was done."""

from saywhere.describing.batches import Described, Describer, describe_pictures, unreadable_at_start
from saywhere.describing.outputs import Outputs
from saywhere.describing.results import ResultsFile
from saywhere.describing.sources import Source, find_pictures, out_path, read_boxes

__all__ = [
    "Described",
    "Describer",
    "Outputs",
    "ResultsFile",
    "Source",
    "describe_pictures",
    "find_pictures",
    "out_path",
    "read_boxes",
    "unreadable_at_start",
]
