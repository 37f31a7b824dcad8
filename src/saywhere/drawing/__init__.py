"""Results drawn on their pictures."""

from saywhere.drawing.attention import draw_attention
from saywhere.drawing.regions import COLOURS, draw_regions, draw_sentence

__all__ = ["COLOURS", "draw_attention", "draw_regions", "draw_sentence"]
