from __future__ import annotations

import json
from pathlib import Path

import pytest
from pictures import noise, write_album
from PIL import Image
from tiny_captioner import tiny_captioner
from typer.testing import CliRunner

import saywhere
from saywhere.cli import app
from saywhere.drawing import draw_attention
from saywhere.models import checkpoint
from saywhere.models.caption_ensemble import CaptionEnsemble


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    checkpoint.save(tiny_captioner(speaker="gru"), folder)
    return str(folder)


def run(*arguments: object, code: int = 0):
    result = CliRunner().invoke(app, ["caption", *map(str, arguments), "--device", "cpu"])
    assert result.exit_code == code, result.output
    return result


def test_one_picture_gives_its_sentence_and_nothing_else(tmp_path: Path, model: str):
    noise(96, 64).save(tmp_path / "a.png")
    loaded = saywhere.load(model)
    assert run(tmp_path / "a.png", "--model", model).output == loaded.caption(tmp_path / "a.png") + "\n"
    greedy = loaded.caption(tmp_path / "a.png", beam=1)
    assert greedy != loaded.caption(tmp_path / "a.png")
    assert run(tmp_path / "a.png", "--model", model, "--beam", 1).output == greedy + "\n"


def test_a_folder_with_broken_pictures_is_captioned_and_gone_on_with(tmp_path: Path, model: str):
    names, bad = write_album(tmp_path / "album", 12, 3)
    lines = tmp_path / "captions.jsonl"
    first = run(tmp_path / "album", "--model", model, "--json", lines, "--limit", 5, "--batch", 2, code=1)
    assert "skipped" in first.stderr and len(lines.read_text().splitlines()) == 4
    second = run(tmp_path / "album", "--model", model, "--json", lines, code=1)
    assert second.stdout == "" and "5 captioned; 4 already in" in second.stderr and "3 skipped" in second.stderr
    assert all(name in second.stderr for name in bad)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["image"] for row in rows] == [name for name in names if name not in bad]
    loaded = saywhere.load(model)
    for row in rows:
        assert row["captions"] == [loaded.caption(row["image"])]
        assert row["boxes"] == [[0, 0, row["width"], row["height"]]]
    assert "9 already in" in run(*[n for n in names if n not in bad], "--model", "nothing", "--json", lines).stderr


def test_several_pictures_are_named(tmp_path: Path, model: str):
    for name in ("a.png", "b.png"):
        noise(96, 64).save(tmp_path / name)
    said = run(tmp_path, "--model", model)
    assert [line.partition(": ")[0] for line in said.stdout.splitlines()] == [f"{tmp_path}/a.png", f"{tmp_path}/b.png"]
    assert "2 captioned" in said.stderr


def test_several_models_speak_together(tmp_path: Path, model: str):
    noise(96, 64).save(tmp_path / "a.png")
    other = tiny_captioner(1)
    folder = checkpoint.save(other, tmp_path / "other")
    together = CaptionEnsemble([tiny_captioner(speaker="gru"), other]).caption(tmp_path / "a.png")
    assert run(tmp_path / "a.png", "--model", model, "--model", folder).output == together + "\n"
    assert together != saywhere.load(model).caption(tmp_path / "a.png")
    drawing = ("--show-attention", tmp_path / "out.png")
    assert (
        "where one --model looks, not 2"
        in run(tmp_path / "a.png", "--model", model, "--model", folder, *drawing, code=2).stderr
    )
    alone = run(tmp_path / "a.png", "--model", model, "--model", "densecap-flickr8k", code=2)
    assert "a captioner is needed" in alone.stderr


def test_options_of_the_model_may_be_changed(tmp_path: Path, model: str):
    noise(96, 64).save(tmp_path / "a.png")
    said = run(tmp_path / "a.png", "--model", model, "--set", "max_words=2").output
    assert said == saywhere.load(model, max_words=2).caption(tmp_path / "a.png") + "\n"
    assert len(said.split()) == 2 and said != run(tmp_path / "a.png", "--model", model).output
    assert "did you mean max_words" in run(tmp_path / "a.png", "--model", model, "--set", "max_word=2", code=2).stderr


def test_a_model_that_says_no_sentences_is_refused(tmp_path: Path):
    noise(96, 64).save(tmp_path / "a.png")
    result = run(tmp_path / "a.png", "--model", "densecap-flickr8k", code=2)
    assert "a captioner is needed" in result.stderr


def test_attention_is_drawn(tmp_path: Path, model: str):
    looking = tiny_captioner()
    folder = checkpoint.save(looking, tmp_path / "looking")
    for name in ("a.png", "b.png"):
        noise(192, 128).save(tmp_path / name)
    out = tmp_path / "out.png"
    told = run(tmp_path / "a.png", "--model", folder, "--beam", 1, "--show-attention", out)
    seen = looking.caption(tmp_path / "a.png", beam=1, attention=True)
    assert (told.stdout, told.stderr) == (f"{seen.sentence}\n", f"written: {out}\n")
    sheet = draw_attention(noise(192, 128), seen.words, seen.weights, seen.boxes, (192, 128))
    with Image.open(out) as drawn:
        assert drawn.format == "PNG" and drawn.tobytes() == sheet.tobytes()
    out.unlink()
    for arguments, message in (
        ((tmp_path, "--model", folder), "draws one picture, not 2"),
        ((tmp_path / "a.png", "--model", model), "the speaker gru looks at no areas"),
        ((tmp_path / "a.png", "--model", folder, "--json", tmp_path / "c.jsonl"), "writes no --json"),
        ((tmp_path / "a.png", "--model", folder, "--show-attention", "out.gif"), "is written as .jpg or .png"),
    ):
        command = arguments if "--show-attention" in arguments else (*arguments, "--show-attention", out)
        failed = run(*command, code=2)
        assert message in failed.stderr and failed.stderr.count("\n") == 1
    assert not out.exists()
