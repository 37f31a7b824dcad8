from __future__ import annotations

import csv
import itertools
import json
from functools import partial
from pathlib import Path

import commands
import pytest
from commands import error_of
from photographs import noise, write_album
from PIL import Image
from skimage import data
from tiny_captioner import tiny_captioner
from video_clips import Timed, damage, moving, plate, write_clip

import saywhere
from saywhere.drawing import draw_attention
from saywhere.networks import checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    checkpoint.save(tiny_captioner(decoder="lstm"), folder)
    return str(folder)


@pytest.fixture(scope="module")
def loaded(model: str) -> saywhere.Model:
    return saywhere.load(model, device="cpu")


run = partial(commands.run, "caption", "--device", "cpu")


def test_one_image_gives_its_sentence_and_nothing_else(tmp_path: Path, model: str, loaded: saywhere.Model):
    noise(96, 64).save(tmp_path / "a.png")
    assert run(tmp_path / "a.png", "--model", model).output == f"{loaded.caption(tmp_path / 'a.png')}\n"
    greedy = loaded.caption(tmp_path / "a.png", beam_size=1).sentence
    assert greedy != loaded.caption(tmp_path / "a.png").sentence
    assert run(tmp_path / "a.png", "--model", model, "--beam-size", 1).output == greedy + "\n"


def test_the_least_probability_of_words_shortens_the_sentence(tmp_path: Path, model: str):
    photo = tmp_path / "photo.png"
    Image.fromarray(data.astronaut()).save(photo)
    found = [run(photo, "--least-probability", least).output.strip() for least in (0, 0.05, 1)]
    assert found[0].startswith(f"{found[1]} ") and found[1].startswith(f"{found[2]} "), found
    refused = run(photo, "--model", model, "--least-probability", 0.1, code=2)
    assert error_of(refused) == "error: tiny has no n-grams of captions: leave out least_probability\n"
    lines = tmp_path / "captions.jsonl"
    run(photo, "--json", lines, "--least-probability", 1)
    assert "least_probability: 1" in run(photo, "--json", lines, code=2).stderr


def test_a_folder_with_broken_images_is_captioned_and_resumed(tmp_path: Path, model: str, loaded: saywhere.Model):
    names, bad = write_album(tmp_path / "album", 12, 3)
    lines = tmp_path / "captions.jsonl"
    first = run(tmp_path / "album", "--model", model, "--json", lines, "--limit", 5, "--batch", 2, code=1)
    assert "skipped" in first.stderr and len(lines.read_text().splitlines()) == 4
    second = run(tmp_path / "album", "--model", model, "--json", lines, code=1)
    assert second.stdout == "" and "5 captioned; 4 already in" in second.stderr and "3 skipped" in second.stderr
    assert all(name in second.stderr for name in bad)
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [row["image"] for row in rows] == [name for name in names if name not in bad]
    for row in rows:
        seen = loaded.caption(row["image"])
        expected = {"image": row["image"], "width": seen.width, "height": seen.height, "caption": seen.sentence}
        assert list(row.items()) == list(expected.items())
    good = [name for name in names if name not in bad]
    refused = run(*good, "--model", model, "--json", lines, "--beam-size", 3, code=2)
    assert refused.stderr.startswith(f"error: {lines}: was started with other options (beam_size: not set, now 3)")
    (tmp_path / ".captions.jsonl.settings.json").unlink()  # lines of an earlier version are taken as they are
    assert "9 already in" in run(*good, "--model", "nothing", "--json", lines).stderr


def test_a_video_has_a_sentence_for_each_change(tmp_path: Path, model: str, loaded: saywhere.Model):
    frames = [plate(grey, {"red": (10 + grey // 4, 10)}) for grey in (20, 230)]
    clip = write_clip(tmp_path / "a.mp4", [Timed(n / 2, frames[n > 3]) for n in range(8)])
    (tmp_path / "b.mp4").write_bytes(b"no video")
    said = run(clip, tmp_path / "b.mp4", "--model", model, "--every", "500ms", code=1)
    times = [line.split(": ")[0] for line in said.stdout.splitlines()]
    assert times[0] == f"{clip} at 0:00" and len(times) <= 8 and "skipped: " in said.stderr
    rows = [json.loads(line) for line in run(clip, "--model", model, "--json", "-").stdout.splitlines()]
    assert rows[0]["video"] == str(clip) and [row["time"] for row in rows] in ([0.0], [0.0, 2.0])
    sentences = [row["caption"] for row in rows]
    assert all(one != next_one for one, next_one in itertools.pairwise(sentences))
    assert "is for images; " in error_of(run(clip, "--model", model, "--json", tmp_path / "r.jsonl", code=2))
    noise(96, 64).save(tmp_path / "c.png")
    assert f"skipped: {clip} and 1 other video; " in run(tmp_path, "--model", model).stderr


def test_a_damaged_video_is_named_and_the_rest_captioned(tmp_path: Path, model: str):
    clip = write_clip(tmp_path / "a.mp4", moving(10))
    damage(clip, 0.4, 0.5)
    said = run(clip, "--model", model, "--every", "500ms", code=1)
    assert f"skipped: {clip}: damaged: " in said.stderr and said.stderr.endswith("; the rest is captioned\n")
    assert said.stdout.startswith(f"{clip} at 0:00: ")


def test_several_images_are_named(tmp_path: Path, model: str):
    for name in ("a.png", "b.png"):
        noise(96, 64).save(tmp_path / name)
    said = run(tmp_path, "--model", model)
    assert [line.partition(": ")[0] for line in said.stdout.splitlines()] == [f"{tmp_path}/a.png", f"{tmp_path}/b.png"]
    assert "2 captioned" in said.stderr


def test_attention_is_drawn(tmp_path: Path, model: str):
    folder = checkpoint.save(tiny_captioner(), tmp_path / "attending")
    for name in ("a.png", "b.png"):
        noise(192, 128).save(tmp_path / name)
    out = tmp_path / "out.png"
    told = run(tmp_path / "a.png", "--model", folder, "--beam-size", 1, "--show-attention", out)
    seen = saywhere.load(folder).caption(tmp_path / "a.png", beam_size=1)
    assert (told.stdout, told.stderr) == (f"{seen.sentence}\n", f"written: {out}\n")
    sheet = draw_attention(noise(192, 128), seen.words, seen.attention, seen.outlines, (192, 128))
    with Image.open(out) as drawn:
        assert drawn.format == "PNG" and drawn.tobytes() == sheet.tobytes()
    out.unlink()
    for arguments, message in (
        ((tmp_path, "--model", folder), "give one image, not 2"),
        ((tmp_path / "a.png", "--model", model), "attends to no regions"),
        ((tmp_path / "a.png", "--model", folder, "--json", tmp_path / "c.jsonl"), "cannot be combined with --json"),
        ((tmp_path / "a.png", "--model", folder, "--show-attention", "out.gif"), "must end in .jpg or .png"),
    ):
        command = arguments if "--show-attention" in arguments else (*arguments, "--show-attention", out)
        assert message in error_of(run(*command, code=2))
    assert not out.exists()


def test_captions_are_not_mixed_with_descriptions(tmp_path: Path, model: str):
    noise(96, 64).save(tmp_path / "a.png")
    lines = tmp_path / "r.jsonl"
    lines.write_text('{"image": "b.png", "width": 9, "height": 9, "boxes": []}\n')
    error = error_of(run(tmp_path / "a.png", "--model", model, "--json", lines, code=2))
    assert "line 1 is not a result with caption" in error


def test_sentences_are_written_into_sidecars(tmp_path: Path, model: str, loaded: saywhere.Model):
    image = tmp_path / "a.png"
    noise(96, 64).save(image)
    sentence, place = loaded.caption(image).sentence, tmp_path / "a.png.xmp"
    run(image, "--model", model, "--output-format", "xmp", "--json", tmp_path / "c.jsonl")
    first = place.read_text()
    assert first.count(f">{sentence}</rdf:li>") == 1  # the description, and no alt text
    place.unlink()
    run(image, "--model", model, "--output-format", "xmp", "--json", tmp_path / "c.jsonl")
    assert place.read_text() == first
    place.write_text("<x/>")
    done = run(image, "--model", model, "--output-format", "xmp", code=1)
    assert f"skipped: {image}: its sidecar {place} cannot be used (it has no rdf:RDF)" in done.stderr
    table = run(image, "--model", model, "--output-format", "parquet", code=2)
    assert table.stderr == (
        "error: --output-format parquet: sentences can only be written as xmp; or write them with --json FILE, which "
        "convert-results FILE --to parquet turns into regions of whole images\n"
    )
    run(image, "--model", model, "--json", tmp_path / "lines.jsonl")
    convert = ["convert-results", str(tmp_path / "lines.jsonl"), "--to", "csv", "--out", str(tmp_path / "c.csv")]
    commands.run(*convert)
    (row,) = csv.DictReader((tmp_path / "c.csv").read_text().splitlines())
    assert (row["phrase"], [row[side] for side in ("x1", "y1", "x2", "y2")]) == (
        sentence,
        ["0.0", "0.0", "96.0", "64.0"],
    )
    drawn = ("--show-attention", tmp_path / "b.png", "--output-format", "xmp")
    assert "cannot be combined with --output-format" in run(image, "--model", model, *drawn, code=2).stderr
