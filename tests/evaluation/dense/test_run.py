"""Which boxes are described."""

from __future__ import annotations

import json
from pathlib import Path

from saywhere.evaluation.dense import TrueBoxes, proposals_digest
from saywhere.evaluation.region_lines import RegionLines

CAT, DOG = [0, 0, 10, 10], [20, 20, 40, 40]


def lines(path: Path, *rows: dict) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_true_boxes_are_merged(tmp_path):
    rows = [{"image": "/data/x.jpg", "boxes": [CAT]}, {"image": "y.jpg", "boxes": [[0, 0, 10, 8], CAT, DOG]}]
    found = RegionLines(lines(tmp_path / "f.jsonl", *rows), needs=())
    names = {"x.jpg": ("x.jpg", "/data/x.jpg"), "y.jpg": ("y.jpg", "/data/y.jpg"), "z.jpg": ("z.jpg",)}
    boxes = TrueBoxes(found, names)
    assert boxes["y.jpg"] == [(0, 0, 10, 9), (20, 20, 40, 40)] and boxes["z.jpg"] == []


def test_another_file_is_other_proposals(tmp_path: Path) -> None:
    assert [proposals_digest(kind) for kind in ("rpn", "selective-search")] == ["rpn", "selective-search"]
    file = tmp_path / "b.jsonl"
    digests = set()
    for text in ("a", "b"):
        file.write_text(text)
        digests.add(proposals_digest(str(file)))
    assert len(digests) == 2 and {len(digest) for digest in digests} == {64}
