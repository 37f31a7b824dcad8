"""``saywhere evaluate attention`` as it is typed, on a tiny captioner."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from photographs import noise
from tiny_captioner import captioner_model, tiny_captioner
from typer.testing import CliRunner, Result

from saywhere import cli
from saywhere.evaluation import attention as attention_run
from saywhere.networks import checkpoint

XML = """<annotation><size><width>96</width><height>64</height><depth>3</depth></size>
<object><name>1</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>72</xmax><ymax>32</ymax></bndbox></object></annotation>"""
LINES = ("[/EN#1/animals A dog] runs on [/EN#2/scene the grass] .", "Here is [/EN#1/people a man] .")
SHARES = (1.0, 0.5, 0.0, 0.0)
"""Of each of the four cells of the grid the share inside the box of entity 1."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(checkpoint.save(tiny_captioner(), tmp_path_factory.mktemp("captioner")))


@pytest.fixture
def flickr(tmp_path: Path) -> Path:
    root = tmp_path / "flickr8k"
    for folder in ("Images", "Entities/Annotations", "Entities/Sentences"):
        (root / folder).mkdir(parents=True)
    for number in range(3):
        noise(96, 64, number).save(root / "Images" / f"{number}_x.jpg")
        (root / f"Entities/Sentences/{number}.txt").write_text("\n".join(LINES) + "\n")
        (root / f"Entities/Annotations/{number}.xml").write_text(XML)
    (root / "Flickr8k.token.txt").write_text("".join(f"{n}_x.jpg#0\tA dog runs .\n" for n in range(3)))
    (root / "Flickr_8k.devImages.txt").write_text("".join(f"{n}_x.jpg\n" for n in range(3)))
    return root


def attention(model: str, root: Path, out: Path, *arguments: object) -> Result:
    command = ["evaluate", "attention", "--model", model, "--data", str(root), "--out", str(out), "--device", "cpu"]
    return CliRunner().invoke(cli.app, [*command, *map(str, arguments)])


def report(out: Path) -> dict:
    return json.loads((out / "report.json").read_text())


def test_the_figures_are_those_of_the_model_beside_uniform_attention(model, flickr, tmp_path, monkeypatch):
    monkeypatch.setattr(attention_run, "names", lambda image: {word: ["1"] for word in ("people", "dog", "a", "two")})
    done = attention(model, flickr, tmp_path / "out", "--beam-size", 2)
    assert (done.exit_code, done.stderr) == (0, "")
    row, loaded = report(tmp_path / "out"), captioner_model(tiny_captioner())
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
    assert (row["given_mentions"], row["generated_mentions"], row["beam_size"]) == (6, len(generated), 2) and generated
    text = (tmp_path / "out/report.md").read_text()
    assert "| uniform attention | 37.5 | 37.5 | 6 |" in text
    assert "| paper: Areas of Attention, Flickr30k test | 40.2 | 61.1 |" in text
    assert done.stdout.startswith(f"given: {100 * means[0]:.1f} %, uniform attention 37.5 % (6 mentions)\n")


def test_it_goes_on_where_it_was(model, flickr, tmp_path, monkeypatch):
    out, measured, usual = tmp_path / "out", [], attention_run.measure_image

    def measure(loaded, encoding, image, *options):
        if len(measured) == 2:
            raise KeyboardInterrupt
        measured.append(image.image.name)
        return usual(loaded, encoding, image, *options)

    monkeypatch.setattr(attention_run, "measure_image", measure)
    done = attention(model, flickr, out, "--no-generated", "--batch", 1)
    so_far = "interrupted after 2 of 3 images; the same command goes on from here\n"
    assert (done.exit_code, done.stderr) == (130, so_far)
    with open(out / attention_run.LINES, "a") as lines:
        lines.write('{"image": "Images/2_x.jpg", "giv')  # as a killed run leaves it
    measured.clear()
    assert attention(model, flickr, out, "--no-generated").exit_code == 0
    assert measured == ["2_x.jpg"]
    row = report(out)
    assert (row["images"], row["given_mentions"]) == (3, 6) and row["generated"] is row["uniform_generated"] is None
    assert attention(model, flickr, out, "--no-generated", "--limit", 1).exit_code == 0
    assert (report(out)["images"], report(out)["given_mentions"]) == (1, 2)
    other = attention(model, flickr, out)
    assert other.exit_code == 2 and "was made with another generated" in other.stderr
    (out / attention_run.LINES).write_text("[]\n")
    assert "attention.jsonl line 1 is not a result with given" in attention(model, flickr, out, "--no-generated").stderr


def test_images_that_fail_are_left_out_and_named(model, flickr, tmp_path):
    data = (flickr / "Images/1_x.jpg").read_bytes()
    (flickr / "Images/1_x.jpg").write_bytes(data[: len(data) // 2])
    done = attention(model, flickr, tmp_path / "out", "--no-generated")
    assert done.exit_code == 1 and "skipped: Images/1_x.jpg: " in done.stderr
    assert (report(tmp_path / "out")["images"], list(report(tmp_path / "out")["skipped"])) == (2, ["Images/1_x.jpg"])


def test_fewer_regions_than_in_training(model, flickr, tmp_path):
    assert attention(model, flickr, tmp_path / "out", "--set", "grid=1", "--no-generated").exit_code == 0
    row = report(tmp_path / "out")
    assert row["given"] == pytest.approx(row["uniform_given"]) and row["set"] == ["grid=1"]  # all of the image
    done = attention(model, flickr, tmp_path / "out", "--set", "grid=3", "--no-generated")
    assert done.exit_code == 2 and "was made with another model" in done.stderr


def test_the_spread_is_handed_on(model, flickr, tmp_path, monkeypatch):
    spreads, usual = [], attention_run.AttentionCorrectness
    monkeypatch.setattr(attention_run, "AttentionCorrectness", lambda s: (spreads.append(s), usual(s))[1])
    attention(model, flickr, tmp_path / "a", "--spread", "pixel", "--limit", 1)
    assert set(spreads) == {"pixel"} and report(tmp_path / "a")["spread"] == "pixel"


def test_what_can_be_mended_is_told(model, flickr, tmp_path):
    gru = checkpoint.save(tiny_captioner(decoder="gru"), tmp_path / "gru")
    done = attention(str(gru), flickr, tmp_path / "out")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "a captioner with the decoder gru attends to no regions" in done.stderr and not (tmp_path / "out").exists()
    assert "no split 'nope'" in attention(model, flickr, tmp_path / "out", "--split", "nope").stderr
    for number in range(3):
        (flickr / f"Entities/Sentences/{number}.txt").write_text("A dog runs .\n")
    assert "has no phrase with a box" in attention(model, flickr, tmp_path / "out").stderr
