"""Batch inference on many images: find them, read ahead, run the model in batches, and save the results."""

from saywhere.inference.results import ImageResult, Outputs, ResultsFile, compare_settings, ensure_same_settings
from saywhere.inference.run import run_images
from saywhere.inference.sources import Source, find_images, find_media, note_videos, out_path, read_boxes

__all__ = [
    "ImageResult",
    "Outputs",
    "ResultsFile",
    "Source",
    "compare_settings",
    "ensure_same_settings",
    "find_images",
    "find_media",
    "note_videos",
    "out_path",
    "read_boxes",
    "run_images",
]
