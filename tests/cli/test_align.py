"""``saywhere ground``, ``evaluate rank`` and ``evaluate ground`` as they are typed, on a tiny aligner."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pictures import noise
from PIL import Image
from tiny_aligner import SENTENCES, tiny_aligner
from tiny_captioner import tiny_captioner
from tiny_densecap import tiny_model
from typer.testing import CliRunner, Result

from saywhere import cli
from saywhere.models import checkpoint

XML = """<annotation><size><width>96</width><height>64</height><depth>3</depth></size>
<object><name>1</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>40</xmax><ymax>60</ymax></bndbox></object></annotation>"""


def backwards(sentence: str) -> str:
    """Another sentence, of the same words."""
    return " ".join(reversed(sentence.rstrip(".").split()))


@pytest.fixture(scope="module")
def aligner(tmp_path_factory) -> str:
    return str(checkpoint.save(tiny_aligner(), tmp_path_factory.mktemp("aligner")))


@pytest.fixture(scope="module")
def flickr(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("flickr8k")
    for folder in ("Images", "Entities/Annotations", "Entities/Sentences"):
        (root / folder).mkdir(parents=True)
    lines = []
    for number, sentence in enumerate(SENTENCES):
        noise(96, 64, number).save(root / "Images" / f"{number}_x.jpg")
        lines += [f"{number}_x.jpg#0\t{sentence}", f"{number}_x.jpg#1\t{backwards(sentence)}"]
        words = sentence.rstrip(".").split(" ", 3)
        marked = f"[/EN#1/people {' '.join(words[:3])}] {words[3]} .\n"
        (root / f"Entities/Sentences/{number}.txt").write_text(marked)
        (root / f"Entities/Annotations/{number}.xml").write_text(XML)
    (root / "Flickr8k.token.txt").write_text("\n".join(lines) + "\n")
    (root / "Flickr_8k.devImages.txt").write_text("".join(f"{n}_x.jpg\n" for n in range(len(SENTENCES))))
    return root


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


def test_ground_prints_phrases_with_boxes_and_draws_them(aligner, tmp_path):
    path = tmp_path / "a.png"
    noise(320, 200).save(path)
    out = tmp_path / "drawn" / "a.png"
    out.parent.mkdir()
    result = run("ground", path, SENTENCES[0], "--model", aligner, "--beta", 0, "--out", out)
    assert result.exit_code == 0, result.output
    alignment = tiny_aligner().align(path, SENTENCES[0], beta=0.0)
    for phrase in alignment.phrases:
        assert phrase.words in result.output
        assert " ".join(f"{v:.0f}" for v in phrase.box) in result.output
    with Image.open(out) as drawn:
        assert drawn.width == 320 and drawn.height > 200


def test_ground_shows_how_it_comes_about(aligner, tmp_path):
    path, steps = tmp_path / "a.png", tmp_path / "steps"
    noise(96, 64).save(path)
    result = run("ground", path, SENTENCES[0], "--model", aligner, "--beta", 0.05, "--steps", steps)
    assert result.exit_code == 0, result.output
    names = ["areas.jpg", "phrases.jpg", "sentence.jpg", "snippets.txt", "words.jpg"]
    assert sorted(p.name for p in steps.iterdir()) == names
    alignment = tiny_aligner().align(path, SENTENCES[0], beta=0.05)
    lines = [line.split("\t") for line in (steps / "snippets.txt").read_text().splitlines()]
    assert [words for _, words in lines] == [words for _, words in alignment.snippets()]
    with Image.open(steps / "areas.jpg") as areas, Image.open(steps / "words.jpg") as words:
        assert areas.size == (96, 64) and words.height > 64


def test_ground_prints_json_on_demand(aligner, tmp_path):
    path = tmp_path / "a.png"
    noise(96, 64).save(path)
    result = run("ground", path, "a red shirt", "--model", aligner, "--json", "--beta", 100, "--areas", 2)
    row = json.loads(result.stdout)
    assert row == tiny_aligner().align(path, "a red shirt", beta=100.0, limit=2).to_dict()
    assert [phrase["words"] for phrase in row["phrases"]] == ["a red shirt"]


def test_ground_with_a_dense_captioner_takes_phrases(tmp_path):
    path, out = tmp_path / "a.png", tmp_path / "b.jpg"
    noise(96, 64).save(path)
    model = tiny_model()
    folder = checkpoint.save(model, tmp_path / "densecap")
    result = run("ground", path, "a dog, the grass", "--model", folder, "--json", "--out", out)
    assert result.exit_code == 0, result.output
    row = json.loads(result.stdout)
    best = model.score(path, ["a dog", "the grass"]).best()
    assert [phrase["words"] for phrase in row["phrases"]] == ["a dog", "the grass"] == list(best.captions or ())
    assert best.scores is not None
    for phrase, box, score in zip(row["phrases"], best.boxes.tolist(), best.scores.tolist(), strict=True):
        assert phrase["box"] == pytest.approx(box, abs=0.01) and phrase["score"] == pytest.approx(score, abs=1e-5)
    with Image.open(out) as drawn:
        assert drawn.width == 96 and drawn.height > 64
    table = run("ground", path, "a dog, the zebra", "--model", folder)
    assert "the zebra" in table.stdout and "does not know: zebra" in table.stderr
    empty = run("ground", path, "a dog,, a cat", "--model", folder)
    assert empty.exit_code == 2 and "the phrase '' has no word" in empty.output
    fewer = run("ground", path, "a dog", "--model", folder, "--json", "--areas", 1)
    assert json.loads(fewer.stdout)["phrases"][0]["box"] == pytest.approx(
        model.describe(path, top=1).boxes[0].tolist(), abs=0.01
    )
    wrong = run("ground", path, "a dog", "--model", folder, "--beta", 1)
    assert wrong.exit_code == 2 and "--beta" in wrong.output


def test_ground_tells_what_can_be_mended(aligner, tmp_path):
    path = tmp_path / "a.png"
    noise(96, 64).save(path)
    captioner = checkpoint.save(tiny_captioner(), tmp_path / "captioner")
    for arguments, message in (
        ((path, "...", "--model", aligner), "has no word"),
        ((tmp_path / "b.png", "a dog", "--model", aligner), "b.png"),
        ((path, "a dog", "--model", aligner, "--out", tmp_path / "a.gif"), "is written as .jpg or .png"),
        ((path, "a dog", "--model", captioner), "places no phrases"),
    ):
        result = run("ground", *arguments)
        assert result.exit_code == 2 and message in result.output, result.output
        assert result.output.startswith("error: ") and result.output.count("\n") == 1


def test_rank_writes_the_report_and_goes_on_where_it_was(aligner, flickr, tmp_path, monkeypatch):
    out = tmp_path / "out"
    result = run("evaluate", "rank", "--model", aligner, "--data", flickr, "--out", out, "--batch", 3)
    assert result.exit_code == 0, result.output
    row = json.loads((out / "report.json").read_text())
    assert (row["task"], row["split"], row["images"], row["sentences"]) == ("rank", "dev", 4, 8)
    for direction in ("image_to_text", "text_to_image"):
        assert set(row[direction]) == {"r1", "r5", "r10", "median_rank"} and row[direction]["r10"] == 1.0
    files = sorted((out / "regions").iterdir())
    assert len(files) == 4
    files[1].unlink()
    times = {path: path.stat().st_mtime_ns for path in files if path.exists()}
    again = run("evaluate", "rank", "--model", aligner, "--data", flickr, "--out", out)
    assert (
        again.exit_code == 0 and json.loads((out / "report.json").read_text())["image_to_text"] == row["image_to_text"]
    )
    assert files[1].exists() and all(path.stat().st_mtime_ns == t for path, t in times.items())
    other = run("evaluate", "rank", "--model", aligner, "--data", flickr, "--out", out, "--areas", 2)
    assert other.exit_code == 2 and "another areas" in other.output


def test_rank_figures_are_those_of_the_model(aligner, flickr, tmp_path):
    run("evaluate", "rank", "--model", aligner, "--data", flickr, "--out", tmp_path)
    model = tiny_aligner()
    pictures = model.embed_pictures([flickr / "Images" / f"{n}_x.jpg" for n in range(4)])
    texts = [t for s in SENTENCES for t in (s, backwards(s))]
    scores = model.score(pictures, model.embed_sentences(texts))
    first = sum(int(scores[k].argmax()) // 2 == k for k in range(4)) / 4
    row = json.loads((tmp_path / "report.json").read_text())
    assert row["image_to_text"]["r1"] == first
    assert row["text_to_image"]["r1"] == sum(int(scores[:, i].argmax()) == i // 2 for i in range(8)) / 8


def test_rank_skips_and_names_what_cannot_be_read(aligner, flickr, tmp_path):
    import shutil

    root = tmp_path / "flickr8k"
    shutil.copytree(flickr, root)
    data = (root / "Images/1_x.jpg").read_bytes()
    (root / "Images/1_x.jpg").write_bytes(data[: len(data) // 2])
    result = run("evaluate", "rank", "--model", aligner, "--data", root, "--out", tmp_path / "out")
    assert result.exit_code == 1 and "1_x.jpg" in result.output
    assert json.loads((tmp_path / "out/report.json").read_text())["images"] == 3


def test_ground_is_measured_beside_its_controls(aligner, flickr, tmp_path):
    result = run("evaluate", "ground", "--model", aligner, "--data", flickr, "--out", tmp_path, "--areas", 3)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "report.json").read_text())
    assert (row["task"], row["phrases"], row["areas"]) == ("ground", 4, 3)
    assert row["by_type"]["people"]["phrases"] == 4
    assert set(row["controls"]) == {"whole picture", "largest region", "random region", "highest prior"}
    assert row["controls"]["whole picture"]["pointing"] == 0.0  # its centre is at x = 48, the truth ends at 40
    assert "largest region" in (tmp_path / "report.md").read_text()


def test_ground_is_measured_with_other_options(aligner, flickr, tmp_path):
    root = shutil.copytree(flickr, tmp_path / "whole")
    for path in (root / "Entities/Annotations").iterdir():  # what is asked for fills the picture
        path.write_text(XML.replace("<xmax>40", "<xmax>96").replace("<ymax>60", "<ymax>64"))
    for bonus, accuracy in ((99, 1.0), (-99, 0.0)):
        out, change = tmp_path / f"out{bonus}", f"size_bonus={bonus}"
        result = run("evaluate", "ground", "--model", aligner, "--data", root, "--out", out, "--set", change)
        assert result.exit_code == 0, result.output
        row = json.loads((out / "report.json").read_text())
        assert (row["set"], row["accuracy"]) == ([change], accuracy)


def test_a_dense_captioner_grounds_phrases_too(flickr, tmp_path):
    model = checkpoint.save(tiny_model(), tmp_path / "densecap")
    arguments = ("evaluate", "ground", "--model", model, "--data", flickr, "--out", tmp_path / "out", "--areas", 3)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "out/report.json").read_text())
    assert (row["task"], row["phrases"], row["images"]) == ("ground", 4, 4)
    assert set(row["controls"]) == {"whole picture", "largest region", "random region", "highest prior"}
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/regions").iterdir()}
    assert run(*arguments).exit_code == 0 and len(times) == 4
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    captioner = checkpoint.save(tiny_captioner(), tmp_path / "captioner")
    wrong = run("evaluate", "ground", "--model", captioner, "--data", flickr, "--out", tmp_path / "no")
    assert wrong.exit_code == 2 and "places no phrases" in wrong.output


def test_ground_limits_the_pictures(aligner, flickr, tmp_path):
    run("evaluate", "ground", "--model", aligner, "--data", flickr, "--out", tmp_path, "--limit", 2)
    assert json.loads((tmp_path / "report.json").read_text())["images"] == 2
