from __future__ import annotations

import json
import re

import numpy as np
from photographs import quarters
from PIL import Image

from saywhere.evaluation.region_store import REGIONS, RegionStore
from saywhere.evaluation.retrieval.best_regions import Asked, BestRegions
from saywhere.evaluation.retrieval.metric import Query, RetrievalResult
from saywhere.evaluation.retrieval.report import write_retrieval_examples, write_retrieval_report
from saywhere.regions import Regions


def test_the_report_has_the_figures_and_the_papers_rows(tmp_path):
    result = RetrievalResult("clean", 3, 2, 0.5, 1.0, 1.0, 1.5, {"0.1": 0.75, "0.3": 0.5, "0.5": 0.25}, 0.3125)
    known = {"data": "jsonl album", "split": "dev", "model": "m", "regions": 20, "seed": 7}
    write_retrieval_report(tmp_path, result, known | {"skipped": {}, "command": "saywhere evaluate | retrieval"})
    row = json.loads((tmp_path / "report.json").read_text())
    assert list(row)[:9] == ["task", "protocol", "data", "split", "images", "queries", "r1", "r5", "r10"]
    assert (row["task"], row["protocol"], row["images"], row["r5"], row["median_rank"]) == (
        "retrieval", "clean", 3, 1.0, 1.5,
    )  # fmt: skip
    assert row["iou_recall"] == {"0.1": 0.75, "0.3": 0.5, "0.5": 0.25} and row["median_iou"] == 0.3125
    text = (tmp_path / "report.md").read_text()
    assert "| **m** | 0.500 | 1.000 | 1.000 | 1.5 | 0.750 | 0.500 | 0.250 | 0.312 |" in text
    assert "| paper: FCLN | 0.27 | 0.53 | 0.67 | 5 | 0.56 | 0.345 | 0.153 | 0.137 |" in text
    assert "| paper: Full Image RNN | 0.1 | 0.3 | 0.43 | 13 |  |  |  |  |" in text
    assert "| seed | 7 |" in text and "`saywhere evaluate \\| retrieval`" in text


def test_the_page_shows_the_query_and_what_was_found(tmp_path):
    quarters(64, 32).save(tmp_path / "a.png")
    store = RegionStore(tmp_path / "out" / REGIONS)
    boxes = [[0, 0, 32, 32], [32, 0, 64, 32]]
    for name, rows in {"a.png": boxes, "b.png": boxes[:1], "c.png": []}.items():
        store.save(name, Regions(64, 32, rows, features=np.ones((len(rows), 2))))
    query = Query("a.png", ("a red cat", "dog"), ((0, 0, 32, 32), (0, 0, 64.5, 32)))
    asked = Asked((query,), ("a.png", "b.png", "c.png"))
    best = BestRegions(tmp_path / "out", asked)
    tables = ([[-1, -4], [-3, -2]], [[-2, -1]], np.zeros((0, 2)))
    best.append([np.array(table, np.float32) for table in tables])
    page = write_retrieval_examples(tmp_path / "out", asked, np.array([[-1.5, -1.5, -9]]), [2], best, [tmp_path])
    text = page.read_text()
    assert re.findall("<h2>(.*?)</h2>", text) == ["best, rank 2: a red cat; dog", "“a red cat” in 3 images"]
    assert re.findall('<img src="examples/(.*?)" alt="(.*?)">', text) == [
        ("query-01-0.png", "the query&#x27;s image: a red cat; dog"),
        ("query-01-1.png", "1. a.png: a red cat; dog"),
        ("query-01-2.png", "2. b.png: a red cat / dog"),
        ("query-01-3.png", "3. c.png: nothing"),
        ("phrase-01-1.png", "a.png, log P -1.00: a red cat"),
        ("phrase-01-2.png", "b.png, log P -2.00: a red cat"),
        ("phrase-01-3.png", "c.png, log P -inf: nothing"),
    ]
    grey = Image.open(tmp_path / "out" / "examples" / "query-01-3.png").getcolors()
    assert grey == [(640 * 320, (225, 225, 225))]
