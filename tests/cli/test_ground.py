"""``saywhere ground`` as it is typed, on a tiny aligner and a tiny dense captioner."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from commands import run
from photographs import noise
from PIL import Image
from stubs import calibrated
from tiny_aligner import SENTENCES
from tiny_captioner import tiny_captioner
from tiny_densecap import tiny_model

import saywhere
from saywhere.images import DRAWN_SIDES, open_image
from saywhere.networks import checkpoint


@pytest.fixture(scope="module")
def densecap(tmp_path_factory) -> str:
    return str(checkpoint.save(tiny_model(), tmp_path_factory.mktemp("densecap")))


@pytest.fixture(scope="module")
def models(aligner, densecap) -> dict[str, saywhere.Model]:
    return {folder: saywhere.load(folder, device="cpu") for folder in (aligner, densecap)}


@pytest.fixture
def image(tmp_path) -> Path:
    noise(96, 64).save(tmp_path / "a.png")
    return tmp_path / "a.png"


ground = partial(run, "ground", "--device", "cpu")


def test_a_sentence_is_cut_into_phrases_with_boxes(models, aligner, tmp_path):
    path = tmp_path / "a.png"
    noise(320, 200, seed=3).save(path)
    out = tmp_path / "drawn"
    result = ground(path, SENTENCES[0], "--model", aligner, "--beta", 0, "--out", out)
    alignment = models[aligner].align(open_image(path, DRAWN_SIDES[1]), SENTENCES[0], beta=0.0)
    assert len(alignment.phrases) > 1 and "similarity" in result.output
    for phrase in alignment.phrases:
        assert phrase.words in result.output
        assert " ".join(f"{v:.0f}" for v in phrase.box) in result.output
    with Image.open(out / "a.png") as drawn:
        assert drawn.size == (800, 500), "a small image is enlarged so that phrases can be read"


def test_phrases_are_cut_as_people_cut_them(models, aligner, densecap, image):
    for folder in (aligner, densecap):
        row = json.loads(ground(image, SENTENCES[0], "--model", folder, "--json", "-").stdout)
        found = models[folder].ground(image, SENTENCES[0])
        assert [phrase["words"] for phrase in row["phrases"]] == ["a man", "a red shirt", "a horse"]
        assert tuple(phrase["words"] for phrase in row["phrases"]) == found.captions
        assert [p["box"] for p in row["phrases"]] == [pytest.approx(box, abs=0.01) for box in found.boxes.tolist()]


def test_what_is_not_in_the_image_has_no_box(aligner, image, tmp_path):
    never = shutil.copytree(aligner, tmp_path / "never")
    calibrated(phrase=(0, 0, 0, -9)).write(never)
    row = json.loads(ground(image, SENTENCES[0], "--model", never, "--json", "-").stdout)
    assert [sorted(phrase) for phrase in row["phrases"]] == [["found", "presence", "words"]] * 3
    assert not any(phrase["found"] for phrase in row["phrases"])
    out = tmp_path / "drawn"
    table = ground(image, SENTENCES[0], "--model", never, "--out", out)
    assert table.stdout.count("not found") == 3
    with Image.open(out / "a.png") as drawn:
        assert drawn.size == (800, 533)
    shown = json.loads(ground(image, SENTENCES[0], "--model", never, "--json", "-", "--threshold", 0).stdout)
    assert all(phrase["found"] and len(phrase["box"]) == 4 for phrase in shown["phrases"])


def test_the_number_is_the_probability_of_the_box(aligner, image, tmp_path):
    """Presence decides what is found; the number beside a box is that of phrase and box, and is never 1.00."""
    sure = shutil.copytree(aligner, tmp_path / "sure")
    for places, number, shown in (({}, 1.0, "0.99"), ({"aligner_place": (0, 0, -1)}, 0.2689, "0.27")):
        calibrated(phrase=(0, 0, 0, 12), **places).write(sure)
        row = json.loads(ground(image, "a dog", "a horse", "--model", sure, "--json", "-").stdout)
        assert [phrase["presence"] for phrase in row["phrases"]] == [pytest.approx(1, abs=1e-4)] * 2
        assert [phrase["score"] for phrase in row["phrases"]] == [pytest.approx(number, abs=1e-4)] * 2
        lines = ground(image, "a dog", "a horse", "--model", sure).stdout.splitlines()
        assert [line.split("\t")[0] for line in lines] == ["score", shown, shown]


def test_the_table_says_what_is_only_in_the_wrong_place(aligner, image, tmp_path):
    sure = shutil.copytree(aligner, tmp_path / "sure")
    calibrated(phrase=(0, 0, 0, 2)).write(sure)
    answers = {
        side: ground(image, f"a dog on the {side} and a horse", "--model", sure).stdout.splitlines()[1:]
        for side in ("left", "right")
    }
    assert any("not found" in dog for dog, _ in answers.values())
    for side, (dog, horse) in answers.items():
        where, words = dog.split("\t")[1:]
        assert words == (f"a dog on the {side}" if where == "not found" else "a dog")
        assert horse.split("\t")[2] == "a horse" and "not found" not in horse


def test_json_on_demand(models, aligner, image):
    result = ground(image, "a red shirt", "--model", aligner, "--json", "-", "--beta", 100, "--regions", 2)
    row = json.loads(result.stdout)
    assert row == models[aligner].align(image, "a red shirt", beta=100.0, regions=2).to_dict()
    assert [phrase["words"] for phrase in row["phrases"]] == ["a red shirt"]


def test_several_texts_are_phrases_for_a_dense_captioner(models, densecap, image, tmp_path):
    out = tmp_path / "drawn"
    result = ground(image, "a dog", "the sky", "--model", densecap, "--json", "-", "--out", out)
    row = json.loads(result.stdout)
    model = models[densecap]
    best = model.score(image, ["a dog", "the sky"]).best()
    assert [phrase["words"] for phrase in row["phrases"]] == ["a dog", "the sky"] == list(best.captions or ())
    for phrase, region in zip(row["phrases"], best, strict=True):
        assert phrase["box"] == pytest.approx(region.box, abs=0.01)
        assert phrase["score"] == pytest.approx(region.score, abs=1e-5)
    assert (out / "a.png").is_file()
    table = ground(image, "a dog", "the zebra", "--model", densecap)
    assert "the zebra" in table.stdout and "score" in table.stdout and "not know, or hardly: zebra" in table.stderr
    foreign = ground(image, "un perro", "犬", "--model", densecap)
    told = "the model knows none of these words: un, perro, 犬; it reads English\n"
    assert foreign.stderr == told
    misspelt = ground(image, "a squar", "plays", "a dog", "--model", densecap).stderr.splitlines()
    assert misspelt == [
        "words that the model does not know, or hardly: squar (did you mean square?), plays",
        "no thing is named, so compared as a whole: plays",
    ]
    for text, message in (("", "the argument TEXT... is empty"), ("...", "the phrase '...' has no word")):
        empty = ground(image, "a dog", text, "a cat", "--model", densecap, code=2)
        assert message in empty.output
    fewer = ground(image, "a dog", "the sky", "--model", densecap, "--json", "-", "--regions", 1)
    only = model.describe(image, top=1).boxes[0].tolist()
    assert [phrase["box"] for phrase in json.loads(fewer.stdout)["phrases"]] == [pytest.approx(only, abs=0.01)] * 2


def test_words_without_quotes_are_one_text(densecap, image):
    def found(*texts):
        return ground(image, *texts, "--model", densecap, "--json", "-").stdout

    assert found("the", "man", "and", "a", "dog") == found("the man and a dog") == found("the man", "a dog")
    assert [phrase["words"] for phrase in json.loads(found("red", "shirt"))["phrases"]] == ["red shirt"]


def test_words_that_are_not_used_are_said(densecap, image):
    result = ground(image, "the man by the left", "--model", densecap, "--json", "-")
    assert result.stderr.splitlines()[-1] == "words not used to place phrases: by the left"
    row = json.loads(result.stdout)
    assert [phrase["words"] for phrase in row["phrases"]] == ["the man"] and row["unused"] == ["by the left"]
    whole = ground(image, "the man by the left", "a dog", "--model", densecap, "--json", "-")
    assert "not used" not in whole.stderr and "unused" not in json.loads(whole.stdout)


def test_the_part_can_be_chosen(models, aligner, densecap, image):
    best = models[densecap].score(image, ["a dog"]).best()
    one = json.loads(ground(image, "a dog", "--part", "densecap", "--model", densecap, "--json", "-").stdout)
    assert one["phrases"][0]["score"] == pytest.approx(best.scores[0], rel=1e-4)
    phrases = ("a red shirt", "a horse")
    for arguments in (("--part", "aligner"), ()):  # it is what a model without a dense captioner uses anyway
        row = json.loads(ground(image, *phrases, *arguments, "--model", aligner, "--json", "-").stdout)
        found = models[aligner].ground(image, list(phrases))
        assert [p["similarity"] for p in row["phrases"]] == pytest.approx(found.similarities.tolist(), rel=1e-4)
        assert [p["box"] for p in row["phrases"]] == [pytest.approx(box, abs=0.01) for box in found.boxes.tolist()]


def test_a_folder_is_grounded_and_a_stopped_run_goes_on(models, densecap, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("album").mkdir()
    for seed, name in enumerate(("a.png", "b.jpg")):
        noise(96, 64, seed=seed).save(Path("album", name))
    Path("album/c.jpg").write_bytes(b"no image")
    words = ("album", "a dog", "--model", densecap)
    table = ground(*words, code=1)
    assert "skipped: album/c.jpg" in table.stderr
    assert "album/a.png\n" in table.stdout and "2 grounded; 1 skipped" in table.stdout
    printed = [json.loads(line) for line in ground(*words, "--json", "-", code=1).stdout.splitlines()]
    assert [row["image"] for row in printed] == ["album/a.png", "album/b.jpg"]
    found = models[densecap].ground("album/a.png", "a dog", threshold=0)
    assert printed[0]["phrases"][0]["box"] == pytest.approx(found.boxes[0].tolist(), abs=0.01)
    whole = ground(*words, "--json", "r.jsonl", "--out", "drawn", code=1)
    assert "written: r.jsonl, drawn" in whole.stdout and sorted(p.name for p in Path("drawn").iterdir()) == [
        "a.png",
        "b.jpg",
    ]
    assert [json.loads(line) for line in Path("r.jsonl").read_text().splitlines()] == printed
    Path("album/d.mp4").write_bytes(b"video")
    Path("drawn/a.png").unlink()
    again = ground(*words, "--json", "r.jsonl", "--out", "drawn", code=1)
    assert "2 already in r.jsonl" in again.stdout and "written: drawn" in again.stdout
    assert "skipped: album/d.mp4; " in again.stderr
    assert Path("drawn/a.png").is_file()
    other = ground("album", "a cat", "--model", densecap, "--json", "r.jsonl", code=2)
    assert "r.jsonl: was started with other options (text: " in other.stderr


def test_user_fixable_errors_are_one_line(aligner, densecap, image, tmp_path):
    captioner = checkpoint.save(tiny_captioner(), tmp_path / "captioner")
    album = tmp_path / "album"
    for name in ("1.png", "2.png"):
        album.mkdir(exist_ok=True)
        noise(96, 64).save(album / name)
    (film := tmp_path / "a.mp4").touch()
    for arguments, message in (
        ((image, "...", "--model", aligner), "has no word"),
        ((image, "a dog", "on", "grass", "--model", aligner), "put it in quotes: 'a dog on grass'"),
        ((image, album / "1.png", "a dog", "--model", aligner), "1.png: is an image, but a text is expected here;"),
        ((tmp_path / "b.png", "a dog", "--model", aligner), "b.png: no such file"),
        ((film, "a dog", "--model", aligner), "a.mp4: is a video; to find moments in it, use saywhere index"),
        ((image, "a dog", "--model", aligner, "--json", tmp_path), "is a folder; give the name of a file, or - to"),
        ((image, "a dog", "--model", captioner), "needs a model with the part aligner"),
        ((image, "a dog", "--model", aligner, "--part", "densecap"), "needs a model with the part densecap"),
        ((image, "a dog", "--model", densecap, "--beta", 1), "needs a model with the part aligner"),
        ((image, "a dog", "--model", aligner, "--threshold", 0.5), "saywhere calibrate makes it so"),
        ((image, "a dog", "the sky", "--model", densecap, "--beta", 1), "--beta needs a single sentence"),
        ((image, "a dog", "--part", "densecap", "--beta", 1), "--beta needs a single sentence"),
    ):
        result = ground(*arguments, code=2)
        assert message in result.output, result.output
        assert result.output.startswith("error: ") and result.output.count("\n") == 1
