"""A model on many images: find them, read ahead, ask in batches, keep what is done."""

from saywhere.inference.batches import Describer, ImageResult, describe_images, run_images
from saywhere.inference.outputs import Outputs
from saywhere.inference.results import ResultsFile, compare_settings, ensure_same_settings
from saywhere.inference.sources import Source, find_images, out_path, read_boxes

__all__ = [
    "Describer",
    "ImageResult",
    "Outputs",
    "ResultsFile",
    "Source",
    "compare_settings",
    "describe_images",
    "ensure_same_settings",
    "find_images",
    "out_path",
    "read_boxes",
    "run_images",
]
