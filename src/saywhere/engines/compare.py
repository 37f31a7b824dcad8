"""Compare two engines of one model, stage by stage."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from saywhere.engines.engine import Decoder, Engine
from saywhere.errors import UserError
from saywhere.images import open_image
from saywhere.text import END, START

SHAPES = ((300, 400), (400, 300), (60, 400), (401, 399))
"""Heights and widths of the images on which engines are compared."""
TOLERANCE = 1e-3
"""Largest difference between two engines, as a share of the largest value of a stage."""


def compare_engines(one: Engine, other: Engine, tolerance: float = TOLERANCE) -> float:
    """Return the largest difference between two engines over all stages, as a share of a stage's largest value.

    Args:
        one, other: engines of one model.
        tolerance: largest difference that is allowed.

    Raises:
        UserError: a stage differs by more; the message names it.
    """
    worst = 0.0
    for (stage, ours), (_, theirs) in zip(stages(one), stages(other), strict=True):
        largest = max(float(np.abs(ours).max(initial=0)), 1e-6)
        difference = float(np.abs(ours - theirs).max(initial=0)) / largest
        if not difference <= tolerance:
            raise UserError(f"the engines differ in {stage} by {difference:.2g} of its largest value")
        worst = max(worst, difference)
    return worst


def stages(engine: Engine, seed: int = 0) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what an engine computes for a few smooth random images, by stage.

    The images are photograph-like in that neighbouring pixels are alike; boxes are random, also none and 1,000.
    """
    random = np.random.default_rng(seed)
    for height, width in SHAPES:
        noise = random.integers(0, 255, (height // 20 + 2, width // 20 + 2, 3), dtype=np.uint8)
        image = open_image(np.kron(noise, np.ones((20, 20, 1), np.uint8))[:height, :width])
        pixels = engine.trunk.preprocess(image)
        maps = engine.trunk.encode([pixels])
        size = pixels.shape[2], pixels.shape[1]
        boxes = [random_boxes(random, count, *size) for count in (0, 1, 1000)]
        where = f"an image of {width} x {height}"
        if engine.densecap is not None:
            rpn = engine.trunk.propose(maps[0])
            yield from (
                (f"{name} of anchors of {where}", getattr(rpn, name)) for name in ("anchors", "logits", "offsets")
            )
        if engine.densecap is not None:
            for rows in boxes:
                (head,) = engine.densecap.region_head(maps, [rows])
                for name in ("embeddings", "logits", "offsets"):
                    yield f"{name} of {len(rows)} regions of {where}", getattr(head, name)
            (head,) = engine.densecap.region_head(maps, [boxes[2][:20]])
            (codes,) = engine.densecap.phrase_embeddings(maps, [boxes[2][:20]], [head.embeddings])
            yield "the region decoder", _first_words(engine.densecap.decoder, codes)
        if engine.aligner is not None:
            for rows in boxes:
                yield f"vectors of {len(rows)} regions of {where}", engine.aligner.region_vectors(maps, [rows])[0]
        if engine.nouns is not None:
            for rows in boxes:
                heads = [] if engine.densecap is None else engine.densecap.region_head(maps, [rows])
                embeddings = [head.embeddings for head in heads] if engine.nouns.config.embed_dim else None
                found = engine.nouns.classify(maps, [rows], embeddings)[0]
                for name, logits in zip(("classes", "kinds"), found, strict=True):
                    yield f"{name} of {len(rows)} regions of {where}", logits
        if engine.captioner is not None:
            config = engine.captioner.config
            given = boxes[2][:50] if config.attend_to == "proposals" else None
            bound = engine.captioner.bind_images(maps, [given])
            yield f"the caption decoder on {where}", _first_words(bound.decoder, bound.embeddings)
            if bound.attention is not None:
                token_ids = random.integers(4, len(engine.captioner.vocabulary), (1, 5))
                yield f"attention on {where}", bound.attention(token_ids)
    if engine.aligner is not None:
        token_ids = random.integers(4, len(engine.aligner.vocabulary), (4, 7))
        token_ids[1, 3:], token_ids[2, :] = 0, END
        yield "vectors of words", engine.aligner.text_vectors(token_ids).vectors


def _first_words(decoder: Decoder, embeddings: np.ndarray) -> np.ndarray:
    """Log-probabilities of the first and the second word."""
    state = decoder.start(embeddings)
    tokens = np.full(len(embeddings), START)
    first, state = decoder.step(tokens, state)
    second, _ = decoder.step(tokens + END, state)
    return np.concatenate((first, second))


def random_boxes(random: np.random.Generator, count: int, width: float, height: float) -> np.ndarray:
    """Return boxes ``(count, 4)`` of all sizes in an image."""
    corners = np.sort(random.uniform(0, 1, (count, 2, 2)), axis=1).reshape(count, 4)
    return (corners * np.array([width, height, width, height])).astype(np.float32)
