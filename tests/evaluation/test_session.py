"""What tasks of evaluation share: images, stores, resume, reports."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from commands import report
from photographs import noise, quarters
from PIL import Image
from refusals import refuses
from tiny_aligner import aligner_model, tiny_aligner
from tiny_bundle import bundle_model
from tiny_captioner import captioner_model, tiny_captioner

import saywhere
from saywhere.errors import UserError
from saywhere.evaluation.grounding import GroundingScores
from saywhere.evaluation.ranking import RankingResult
from saywhere.evaluation.report import TASKS, cell, table, write_report
from saywhere.evaluation.session import ArrayStore, Session, VectorStore
from saywhere.inference import Source
from saywhere.models.aligner import ImageVectors
from saywhere.models.model import Model
from saywhere.networks import checkpoint


@pytest.fixture(scope="module")
def aligner() -> Model:
    return aligner_model(tiny_aligner())


def test_a_task_is_done_in_python(aligner: Model, flickr: Path, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        steps.append((what, done, total))

    result = saywhere.evaluate(aligner, flickr, task="rank", out=tmp_path, limit=3, batch=2, progress=progress)
    assert isinstance(result, RankingResult) and result.text_to_image.queries == 6
    assert steps == [("looking", number, 3) for number in range(4)]
    row = report(tmp_path)
    assert row["image_to_text"]["r1"] == result.image_to_text.r1
    assert (row["model"], row["images"], row["data"], row["split"]) == ("tiny", 3, "flickr8k flickr8k", "dev")
    assert row["command"] == f"saywhere.evaluate('tiny', {str(flickr)!r}, 'rank')"
    steps.clear()
    saywhere.evaluate(aligner, flickr, task="rank", out=tmp_path, limit=3, progress=progress)
    assert steps == [("looking", 3, 3)], "the images of the first run are taken over"


def test_options_are_those_of_the_command(aligner: Model, flickr: Path, tmp_path: Path) -> None:
    result = saywhere.evaluate(aligner, str(flickr), "ground", out=tmp_path / "a", part="aligner", split="dev")
    assert isinstance(result, GroundingScores) and report(tmp_path / "a")["part"] == "aligner"
    with pytest.raises(UserError, match="part must be aligner, or none, not 'captioner'"):
        saywhere.evaluate(aligner, flickr, "ground", out=tmp_path / "b", part="captioner")
    with pytest.raises(TypeError, match="beta"):
        saywhere.evaluate(aligner, flickr, "ground", out=tmp_path / "b", beta=1)


def test_a_model_may_be_named(flickr: Path, tmp_path: Path) -> None:
    folder = checkpoint.save(tiny_captioner(), tmp_path / "m")
    figures = saywhere.evaluate(folder, flickr, "attention", out=tmp_path / "out", limit=1)
    assert figures["images"] == 1 and report(tmp_path / "out")["model"] == str(folder)


def test_an_unknown_task_is_named_with_those_there_are(aligner: Model, tmp_path: Path) -> None:
    names = "dense, caption, region-captions, rank, search, ground, nouns, attention"
    refuses(f"no task 'ranking'; there are {names}, retrieval", saywhere.evaluate, aligner, tmp_path, "ranking")
    assert ", ".join(TASKS) == names


@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_missing_part_is_reported_before_the_data_is_read(task: str, aligner: Model, tmp_path: Path) -> None:
    model = aligner if task in ("caption", "attention") else captioner_model(tiny_captioner())
    with pytest.raises(UserError, match="tiny cannot .*: that needs a model with the part .*; this one has "):
        saywhere.evaluate(model, tmp_path / "nowhere", task, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def images(folder: Path, count: int) -> list[Source]:
    names = [f"{number}.png" for number in range(count)]
    for number, name in enumerate(names):
        quarters(8 + number, 8).save(folder / name)
    return [Source(folder / name, name, Path(name)) for name in names]


def test_each_image_is_asked_about_once(tmp_path: Path) -> None:
    sources, kept, asked = images(tmp_path, 5), {"1.png": 0}, []
    sources[3].path.write_bytes(b"no image")

    def ask(opened, boxes):
        asked.append(len(opened))
        return [image.width for image in opened]

    session = Session(tmp_path, batch=2)
    seen = session.each(ask, sources, set(kept), kept.__setitem__)
    assert kept == {"1.png": 0, "0.png": 8, "2.png": 10, "4.png": 12} and asked == [2, 1]
    assert [source.name for source in seen] == ["0.png", "1.png", "2.png", "4.png"]
    assert list(session.skipped) == ["3.png"] and not session.complete
    refuses(r"of 1 image none could be read; 3\.png: ", Session(tmp_path).each, ask, sources[3:4], (), kept.__setitem__)


def test_a_run_that_is_stopped_says_how_far_it_came(tmp_path: Path) -> None:
    kept: dict[str, int] = {}

    def ask(opened, boxes):
        if len(kept) == 2:
            raise KeyboardInterrupt
        return [image.width for image in opened]

    session = Session(tmp_path, batch=1)
    with pytest.raises(KeyboardInterrupt, match="interrupted after 2 of 4 images; run it again to continue"):
        session.each(ask, images(tmp_path, 4), (), kept.__setitem__)
    assert list(kept) == ["0.png", "1.png"]


def test_the_facts_of_a_report(tmp_path: Path) -> None:
    session = Session(tmp_path, model="m", options=["a=1"], command="saywhere evaluate")
    session.skipped["x.jpg"] = "cut"
    session.report.problem("missing image", "y.jpg")
    known = session.known("flickr8k", images=3)
    known.pop("peak_gpu_memory_mb", None)  # of a machine that has one
    assert known.pop("seconds") >= 0 and known.pop("peak_memory_mb") > 10
    assert known == {
        "data": "flickr8k", "split": None, "model": "m", "images": 3, "skipped": {"x.jpg": "cut"}, "set": ["a=1"],
        "data_problems": {"missing image": 1}, "command": "saywhere evaluate",
    }  # fmt: skip
    assert "set" not in Session(tmp_path).known("flickr8k")


def test_results_of_another_task_are_not_lost(aligner: Model, flickr: Path, tmp_path: Path) -> None:
    """Neither a report nor, before there is one, what a run that was stopped has made."""
    saywhere.evaluate(aligner, flickr, task="rank", out=tmp_path, limit=2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    line = r"report\.json: is of the task rank, not ground; give another --out, or remove it$"
    refuses(line, saywhere.evaluate, aligner, flickr, task="ground", out=tmp_path, limit=2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    (tmp_path / "report.json").unlink()
    with pytest.raises(UserError, match=r"settings\.json: is of the task rank, not ground; give another --out, or rem"):
        saywhere.evaluate(aligner, flickr, task="ground", out=tmp_path, limit=2)
    saywhere.evaluate(aligner, flickr, task="rank", out=tmp_path, limit=2)  # what is there is used
    assert report(tmp_path)["task"] == "rank"
    for damaged in ("", "[]", '{"task"', "[" * 100_000):
        (tmp_path / "report.json").write_text(damaged)
        assert saywhere.evaluate(aligner, flickr, task="rank", out=tmp_path, limit=2)


@pytest.mark.parametrize("task", ["dense", "region-captions", "ground", "caption"])
def test_results_for_other_annotations_or_images_are_not_taken_over(task: str, tmp_path: Path) -> None:
    """Nor for another data set of the same name."""
    model = bundle_model()
    data, out = tmp_path / "a" / "set", tmp_path / "out"
    row = {"image": "0.png", "split": "val", "sentences": ["a red dog"]}
    for folder, phrases in ((data, ["a red dog", "a cat"]), (tmp_path / "b" / "set", ["a cat", "a red dog"])):
        folder.mkdir(parents=True)
        quarters(64, 48).save(folder / "0.png")
        boxes = [[0, 0, 20, 20], [20, 20, 60, 40]]
        row["regions"] = [{"box": box, "phrase": phrase} for box, phrase in zip(boxes, phrases, strict=True)]
        (folder / "d.jsonl").write_text(json.dumps(row) + "\n")
    saywhere.evaluate(model, data, task, out=out, split="val")
    before = report(out)
    with pytest.raises(UserError, match="was made with another data; remove it, or give another --out"):
        saywhere.evaluate(model, tmp_path / "b" / "set", task, out=out, split="val")
    changed = row | {"regions": row["regions"][:1]}  # pyright: ignore[reportIndexIssue]
    lines = (data / "d.jsonl").read_text()
    (data / "d.jsonl").write_text(json.dumps(changed) + "\n")
    refuses("was made with another data", saywhere.evaluate, model, data, task, out=out, split="val")
    (data / "d.jsonl").write_text(lines)
    (tmp_path / "link").symlink_to(data)
    assert saywhere.evaluate(model, tmp_path / "link", task, out=out, split="val"), "the same data by another path"
    quarters(64, 48).transpose(Image.Transpose.ROTATE_180).save(data / "0.png")
    refuses("was made with another data", saywhere.evaluate, model, data, task, out=out, split="val")
    changing = ("seconds", "peak_memory_mb", "command", "data")
    assert {k: v for k, v in report(out).items() if k not in changing} == {
        k: v for k, v in before.items() if k not in changing
    }


def test_vectors_of_another_image_of_the_same_name_are_not_taken_over(aligner: Model, tmp_path: Path) -> None:
    for number, name in enumerate("aba"):  # the third is the first again
        folder = tmp_path / name / "set"
        folder.mkdir(parents=True, exist_ok=True)
        noise(40 + 8 * (number % 2), 40).save(folder / "0.png")
        row = {"image": "0.png", "split": "val", "sentences": ["a red dog"]}
        (folder / "d.jsonl").write_text(json.dumps(row) + "\n")
        saywhere.evaluate(aligner, folder, "rank", out=tmp_path / "out", split="val")
    sizes = {(tmp_path / name / "set" / "0.png").stat().st_size for name in "ab"}
    assert len(sizes) == len([*(tmp_path / "out" / "regions").iterdir()]) == 2


def test_a_file_is_no_folder_for_results(aligner: Model, flickr: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UserError, match="file: is a file, and no folder for results$"):
        saywhere.evaluate(aligner, flickr, task="rank", out=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_both_files_are_written(tmp_path: Path) -> None:
    write_report(tmp_path / "new", {"task": "x", "file": "a\udcff"})
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["report.json", "report.md"]
    row = json.loads((tmp_path / "new" / "report.json").read_text())
    assert row == {"task": "x", "file": "a\udcff", "saywhere": saywhere.__version__}
    assert "| file | a? |" in (tmp_path / "new" / "report.md").read_text(), "what is not UTF-8 is replaced"


def test_tables() -> None:
    assert table(("", "a|b"), [("x\ny", None), (1234567, 0.5)]) == [
        "|  | a\\|b |",
        "|---|---|",
        "| x y |  |",
        "| 1,234,567 | 0.5 |",
    ]
    assert cell("a  |\t b") == "a \\| b"


def test_a_report_without_lines_has_a_table_for_all_that_is_nested(tmp_path: Path) -> None:
    row = {
        "task": "x", "accuracy": 0.0, "by_kind": {"cat": {"boxes": 1200, "right": 0.123456}, "dog": {"boxes": 3}},
        "presence": None, "layout": {"cases": (1, 2), "fits": {"hit": {"bias": 1.5, "weights": {"a": 2.0}}}},
        "groups": [{"kind": "all"}],
        "skipped": {"a.jpg": "cut", "b.jpg": "cut"}, "beam_size": 3, "zero": 0, "set": ["a=1", "b=2"],
    }  # fmt: skip
    write_report(tmp_path, row)
    two = ["|  |  |", "|---|---|"]
    assert (tmp_path / "report.md").read_text().splitlines() == [
        *("# x", "", *two, "| task | x |", "| accuracy | 0.0 |", "| skipped | 2 |", "| beam size | 3 |"),
        *("| set | a=1, b=2 |", ""),
        *("## by kind", "", "|  | boxes | right |", "|---|---|---|", "| cat | 1,200 | 0.1235 |", "| dog | 3 |  |", ""),
        *("## layout", "", *two, "| cases | 1, 2 |", ""),
        *("## layout fits", "", "|  | bias |", "|---|---|", "| hit | 1.5 |", ""),
        *("## layout fits hit weights", "", *two, "| a | 2.0 |", ""),
        *("## groups", "", "|  | kind |", "|---|---|", "| 1 | all |", ""),
    ]


BOXES = np.array([[0, 0, 4, 4], [1, 2, 9, 5]], np.float32)


def test_arrays_are_the_same_again(tmp_path):
    store = ArrayStore(tmp_path / "regions")
    arrays = {"boxes": BOXES, "features": np.arange(6, dtype=np.float32).reshape(2, 3), "none": BOXES[:0]}
    for name in ("p/ä.jpg", "p/\udcff.jpg"):  # also a file name that is not UTF-8
        assert name not in store
        store.write(name, arrays)
        again = store.read(name)
        assert name in store and again.keys() == arrays.keys()
        for part, values in arrays.items():
            np.testing.assert_array_equal(again[part], values)


def test_vectors_are_the_same_again(tmp_path):
    store = VectorStore(tmp_path)
    vectors = ImageVectors(9, 5, BOXES, np.array([[1.5], [-2]], np.float32), "x", np.array([0, 20.5], np.float32))
    store.save("a", vectors)
    again = store.load("a")
    assert (again.width, again.height, again.image) == (9, 5, "a")
    for part in ("boxes", "vectors", "logits"):
        np.testing.assert_array_equal(getattr(again, part), getattr(vectors, part))


def test_a_damaged_file_is_named(tmp_path):
    store = ArrayStore(tmp_path / "regions")
    store.write("a", {"boxes": BOXES})
    (file,) = store.folder.iterdir()
    file.write_bytes(b"no")
    refuses(rf"{file.name}: is damaged; remove it", store.read, "a")
