"""The report of captions of whole images, and its page of examples."""

from __future__ import annotations

import json

from photographs import quarters

from saywhere.evaluation.captions import CaptionScores, write_caption_examples, write_caption_report

METRICS = {"bleu_1": 0.5, "bleu_2": 0.4, "bleu_3": 0.3, "bleu_4": 0.2, "meteor": 0.25, "rouge_l": 0.45, "cider": 0.625}


def test_report_and_page(tmp_path):
    scores = CaptionScores(METRICS, {"a.png": 0.5, "b.png": 0.75})
    known = {"data": "d", "split": None, "beam_size": 3, "skipped": {"c.png": "cut"}, "command": "saywhere evaluate"}
    write_caption_report(tmp_path, scores, known)
    row = json.loads((tmp_path / "report.json").read_text())
    assert list(row)[:12] == ["task", "protocol", "data", "split", "images", *METRICS]
    assert {name: row[name] for name in METRICS} == METRICS and row["images"] == 2
    text = (tmp_path / "report.md").read_text()
    assert "| 0.5000 | 0.4000 | 0.3000 | 0.2000 | 0.2500 | 0.4500 | 0.6250 |" in text
    assert "| beam size | 3 |" in text and "| images skipped | 1 |" in text
    quarters(64, 32).save(tmp_path / "a.png")
    captions, references = {"a.png": "a <cat>", "b.png": ""}, {"a.png": ["the cat"], "b.png": ["x & y", "z"]}
    write_caption_examples(tmp_path, scores, captions, references, [tmp_path])
    page = (tmp_path / "examples.html").read_text()
    places = [page.index(part) for part in ("best: b.png, CIDEr-D 0.750", "nothing<", "x &amp; y", "worst: a.png")]
    assert places == sorted(places) and "<figcaption>a &lt;cat&gt;</figcaption>" in page
    assert {path.name for path in (tmp_path / "examples").iterdir()} == {"01-best.png", "02-worst.png"}
