"""Images with boxes, captions and attention drawn on them, for people to read."""

from saywhere.drawing.attention import draw_attention
from saywhere.drawing.boxes import draw_boxes, draw_sentence
from saywhere.drawing.labels import COLOURS

__all__ = ["COLOURS", "draw_attention", "draw_boxes", "draw_sentence"]
