"""``saywhere evaluate dense --proposals METHOD``: the boxes of Selective Search instead of the model's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from photographs import quarters

from saywhere.errors import UserError
from saywhere.evaluation.dense import proposals
from saywhere.evaluation.region_lines import RegionLines
from saywhere.evaluation.table1.cells import write_lines
from saywhere.inference import Source
from saywhere.networks.vision.external_proposals import SelectiveSearch

pytest.importorskip("cv2", reason="needs the extra proposals")


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    quarters(64, 48).save(tmp_path / "a.png")
    (tmp_path / "broken.png").write_bytes(b"nothing")
    return [Source(tmp_path / name, name, Path(name)) for name in ("a.png", "broken.png")]


@pytest.fixture
def truth(tmp_path: Path) -> RegionLines:
    write_lines(tmp_path / "truth.jsonl", [{"image": "a.png", "boxes": [[1, 2, 3, 4]], "captions": ["x"]}])
    return RegionLines(tmp_path / "truth.jsonl")


def test_boxes_are_those_of_the_method(
    sources: list[Source], truth: RegionLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = proposals.find_proposals("selective-search", truth, sources)
    assert boxes is not None and list(boxes) == ["a.png", "broken.png"] and len(boxes) == 2
    expected = [tuple(box) for box in SelectiveSearch()(sources[0].path).boxes.tolist()]
    assert len(expected) > 2 and boxes["a.png"] == expected
    monkeypatch.setattr(proposals, "EXTERNAL", 2)
    assert boxes["a.png"] == expected[:2]


def test_a_broken_image_has_no_boxes(sources: list[Source], truth: RegionLines) -> None:
    boxes = proposals.find_proposals("selective-search:quality", truth, sources)
    assert boxes is not None and boxes["broken.png"] == []


def test_what_is_neither_a_method_nor_a_file_is_refused(sources: list[Source], truth: RegionLines) -> None:
    with pytest.raises(UserError, match=r"nothing\.jsonl: neither rpn, gt nor selective-search.* and no such file"):
        proposals.find_proposals("nothing.jsonl", truth, sources)
    with pytest.raises(UserError, match=r"selective-search:slow.* are not known"):
        proposals.find_proposals("selective-search:slow", truth, sources)


def test_another_file_is_other_proposals(tmp_path: Path) -> None:
    assert [proposals.proposals_digest(kind) for kind in ("rpn", "selective-search")] == ["rpn", "selective-search"]
    file = tmp_path / "b.jsonl"
    digests = set()
    for text in ("a", "b"):
        file.write_text(text)
        digests.add(proposals.proposals_digest(str(file)))
    assert len(digests) == 2 and {len(digest) for digest in digests} == {64}
