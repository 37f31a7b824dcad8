"""Attention correctness: the metric, and the command on a small data set."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import error_of, report, run
from photographs import noise
from tiny_captioner import captioner_model, tiny_captioner
from typer.testing import Result

from saywhere.boxes import iou
from saywhere.configs.captioner import TERMS
from saywhere.data.flickr import MarkedImage, read_marked
from saywhere.evaluation import attention as attention_run
from saywhere.evaluation.attention import (
    Mention,
    correctness,
    entity_boxes,
    generated_mentions,
    given_mentions,
    measure,
    names,
    shares_inside,
    union_pieces,
    warped_shares_inside,
)
from saywhere.networks import checkpoint

BOXES = {"1": np.array([0.0, 0, 20, 20]), "2": np.array([10.0, 0, 40, 20])}
LINES = (
    "[/EN#1/people A young boy] holds [/EN#2/other a ball] .",
    "[/EN#1/people A child] and [/EN#3/other the wind]",
    "[/EN#2/other A red ball] near [/EN#1/people a boy]",
)

TALKS: dict[str, Any] = {"terms": TERMS, "feedback": "marginal"}
"""Options with which the random weights make sentences."""


def image() -> MarkedImage:
    return MarkedImage(Path("1.jpg"), 40, 40, tuple(read_marked(line, BOXES) for line in LINES))


def test_the_union_of_boxes_in_pieces():
    boxes = np.array([[0.0, 0, 4, 4], [2, 2, 6, 6], [2, 2, 3, 3]])
    pieces = union_pieces(boxes)
    assert (pieces[:, 2:] - pieces[:, :2]).prod(axis=1).sum() == 16 + 16 - 4
    overlaps = [iou(a[None], b[None]).item() for a, b in combinations(pieces, 2)]
    assert len(pieces) > 3 and not any(overlaps)
    assert union_pieces(np.zeros((0, 4))).shape == (0, 4)
    assert union_pieces(np.array([[3.0, 3, 3, 8]])).shape == (0, 4)


def test_shares_by_hand():
    areas = np.array([[0.0, 0, 10, 10], [10, 0, 20, 10], [5, 5, 15, 15], [3, 3, 3, 9]])
    shares, sizes = shares_inside(areas, np.array([[0.0, 0, 10, 10], [5, 0, 12, 10]]))
    assert sizes.tolist() == [100, 100, 100, 0]
    assert shares == pytest.approx([1, 0.2, (25 + 10) / 100, 0])


def test_warped_is_upright_where_nothing_is_warped():
    random = np.random.default_rng(0)
    low = 40 * random.random((20, 2))
    areas = np.concatenate((low, low + 5 + 30 * random.random((20, 2))), axis=1)
    quads = areas[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    boxes = np.array([[10.0, 10, 30, 50], [20, 5, 60, 30]])
    exact, sizes = shares_inside(areas, boxes)
    sampled, same = warped_shares_inside(quads, boxes, 100, 100)
    assert sampled == pytest.approx(exact, abs=0.05)
    assert same == pytest.approx(sizes)
    assert exact.min() < 0.1 < 0.9 < exact.max()


def test_correctness_by_hand():
    weights = np.array([[0.7, 0.2, 0.1], [0, 0, 1]])
    shares, sizes = np.array([1.0, 0.5, 0]), np.array([10.0, 40, 20])
    assert correctness(weights, shares, sizes) == pytest.approx([0.8, 0])
    assert correctness(weights, shares, np.array([10.0, 0, 20])) == pytest.approx([0.7 / 0.8, 0])
    assert correctness(weights, shares, np.zeros(3)).tolist() == [0, 0]


def test_mentions_of_given_sentences():
    first, second, third = image().sentences
    assert given_mentions(first) == [Mention(2, "1"), Mention(5, "2")]  # "boy", "ball"
    assert given_mentions(second) == [Mention(1, "1")]  # the wind has no box
    assert given_mentions(third) == [Mention(2, "2"), Mention(5, "1")]


def test_mentions_of_generated_sentences():
    named = names(image())
    assert named == {"boy": ["1"], "ball": ["2"], "child": ["1"]}
    said = ["a", "boy", "with", "a", "ball", "and", "a", "boy", "in", "the", "wind"]
    assert generated_mentions(said, named) == [Mention(1, "1"), Mention(4, "2"), Mention(7, "1")]
    two = MarkedImage(
        Path("2.jpg"), 40, 40, (read_marked("[/EN#1/people a man] sees [/EN#2/people a tall man]", BOXES),)
    )
    assert generated_mentions(["man"], names(two)) == [Mention(0, "1"), Mention(0, "2")]


def test_the_measure_over_sentences():
    boxes = entity_boxes(image())
    assert {entity: box.tolist() for entity, box in boxes.items()} == {"1": [[0, 0, 20, 20]], "2": [[10, 0, 40, 20]]}
    quarters = np.array([[0.0, 0, 20, 20], [20, 0, 40, 20], [0, 20, 20, 40], [20, 20, 40, 40]])
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0], [0.6, 0.4, 0, 0]])
    mentions = [Mention(0, "1"), Mention(1, "2"), Mention(2, "2"), Mention(3, "1"), Mention(0, "9")]
    for areas in (quarters, quarters[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(4, 4, 2)):
        found, control = measure(weights, mentions, areas, boxes, (40, 40))
        assert found == pytest.approx([0.1, 0.5, 0.6 * 0.5 + 0.4])
        assert control == pytest.approx([0.25, 0.375, 0.375])  # the share of the image


XML = """<annotation><size><width>96</width><height>64</height><depth>3</depth></size>
<object><name>1</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>72</xmax><ymax>32</ymax></bndbox></object></annotation>"""
SENTENCES = ("[/EN#1/animals A dog] runs on [/EN#2/scene the grass] .", "Here is [/EN#1/people a man] .")
SHARES = (1.0, 0.5, 0.0, 0.0)
"""Of each of the four cells of the grid the share inside the box of entity 1."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoint.save(tiny_captioner(**TALKS), tmp_path_factory.mktemp("captioner")))


@pytest.fixture
def flickr(tmp_path: Path) -> Path:
    root = tmp_path / "flickr8k"
    for folder in ("Images", "Entities/Annotations", "Entities/Sentences"):
        (root / folder).mkdir(parents=True)
    for number in range(3):
        noise(96, 64, number).save(root / "Images" / f"{number}_x.jpg")
        (root / f"Entities/Sentences/{number}.txt").write_text("\n".join(SENTENCES) + "\n")
        (root / f"Entities/Annotations/{number}.xml").write_text(XML)
    (root / "Flickr8k.token.txt").write_text("".join(f"{n}_x.jpg#0\tA dog runs .\n" for n in range(3)))
    (root / "Flickr_8k.devImages.txt").write_text("".join(f"{n}_x.jpg\n" for n in range(3)))
    return root


def attention(model: str, root: Path, out: Path, *arguments: object, code: int = 0) -> Result:
    command = ["evaluate", "attention", "--model", model, "--data", root, "--out", out, "--device", "cpu"]
    return run(*command, *arguments, code=code)


def test_the_figures_are_those_of_the_model_beside_uniform_attention(model, flickr, tmp_path, monkeypatch):
    monkeypatch.setattr(attention_run, "names", lambda image: {word: ["1"] for word in ("people", "dog", "a", "two")})
    done = attention(model, flickr, tmp_path / "out", "--set", "decoding.beam_size=2")
    assert done.stderr == ""
    row, loaded = report(tmp_path / "out"), captioner_model(tiny_captioner(**TALKS))
    given, generated = [], []
    for number in range(3):
        path = flickr / "Images" / f"{number}_x.jpg"
        first, second = loaded.attend(path, ["a dog runs on the grass", "here is a man"])
        given += [first.attention[1], second.attention[3]]
        own = loaded.caption(path, beam_size=2)
        words = ("people", "dog", "a", "two")
        generated += [w for word, w in zip(own.words, own.attention, strict=True) if word in words]
    means = [
        sum(float(sum(w * s for w, s in zip(r, SHARES, strict=True))) for r in rs) / len(rs)
        for rs in (given, generated)
    ]
    assert (row["given"], row["generated"]) == (pytest.approx(means[0]), pytest.approx(means[1]))
    assert row["uniform_given"] == row["uniform_generated"] == pytest.approx(0.375)  # of the image's pixels
    assert (row["task"], row["data"], row["split"], row["images"]) == ("attention", "flickr8k", "dev", 3)
    assert (row["given_mentions"], row["generated_mentions"]) == (6, len(generated)) and generated
    assert done.stdout.startswith(f"given: {100 * means[0]:.1f} %, uniform attention 37.5 % (6 mentions)\n")


def test_it_goes_on_where_it_was(model, flickr, tmp_path, monkeypatch):
    out, measured, usual = tmp_path / "out", [], attention_run.measure_image

    def counted(loaded, encoding, image):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(image.image.name)
        return usual(loaded, encoding, image)

    monkeypatch.setattr(attention_run, "measure_image", counted)
    done = attention(model, flickr, out, "--batch", 1, code=130)
    so_far = "interrupted after 2 of 3 images; run it again to continue\n"
    assert done.stderr == so_far
    with open(out / attention_run.LINES, "a") as lines:
        lines.write('{"image": "Images/2_x.jpg", "giv')  # as a killed run leaves it
    measured.clear()
    attention(model, flickr, out)
    assert measured == ["2_x.jpg"]
    row = report(out)
    assert (row["images"], row["given_mentions"]) == (3, 6) and row["generated"] is row["uniform_generated"] is None
    attention(model, flickr, out, "--limit", 1)
    assert (report(out)["images"], report(out)["given_mentions"]) == (1, 2)
    (out / attention_run.LINES).write_text("[]\n")
    assert "attention.jsonl line 1 is not a result with given" in attention(model, flickr, out, code=2).stderr


def test_fewer_regions_than_in_training(model, flickr, tmp_path):
    attention(model, flickr, tmp_path / "out", "--set", "grid=1")
    row = report(tmp_path / "out")
    assert row["given"] == pytest.approx(row["uniform_given"]) and row["set"] == ["grid=1"]  # all of the image
    done = attention(model, flickr, tmp_path / "out", "--set", "grid=3", code=2)
    assert "was made with another model" in done.stderr


def test_what_can_be_mended_is_told(model, flickr, tmp_path):
    plain = checkpoint.save(tiny_captioner(decoder="lstm"), tmp_path / "plain")
    error = error_of(attention(str(plain), flickr, tmp_path / "out", code=2))
    assert "a captioner with the decoder lstm attends to no regions" in error and not (tmp_path / "out").exists()
    assert "no split 'nope'" in attention(model, flickr, tmp_path / "out", "--split", "nope", code=2).stderr
    for number in range(3):
        (flickr / f"Entities/Sentences/{number}.txt").write_text("A dog runs .\n")
    assert "has no phrase with a box" in attention(model, flickr, tmp_path / "out", code=2).stderr
