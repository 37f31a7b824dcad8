"""The bundled model as ``pip install saywhere`` brings it: photographs, no PyTorch, no network, kills and damage."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import photographs
import pytest
from PIL import Image

import saywhere
from saywhere.boxes import iou
from saywhere.models.nouns import plural
from saywhere.search.indexing import embed_for_index
from saywhere.search.phrases import LIKELY, PhrasesInImages, Query

ROOT = Path(__file__).parents[2]
BLOCKED = """
import socket, sys
def refuse(*a, **k): raise AssertionError("a connection was opened")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
for name in ("torch", "torchvision", "timm", "onnx", "onnxscript", "scipy", "matplotlib"): sys.modules[name] = None
from saywhere.cli import main
sys.argv[0] = "saywhere"
try:
    main()
finally:
    heavy = ("saywhere.networks", "saywhere.training", "saywhere.evaluation", "saywhere.papers")
    assert not [name for name in sys.modules if name.startswith(heavy)]
"""
"""The program in a process that can open no connection and has no PyTorch."""

KILLED = """
import os, signal
from saywhere.inference import ResultsFile
append, lines = ResultsFile.append, []
def deadly(*given):
    append(*given)
    lines.append(given)
    len(lines) == 3 and os.kill(os.getpid(), signal.SIGKILL)
ResultsFile.append = deadly
""" + BLOCKED  # fmt: skip
"""The same, killed when it has written three lines."""


def photograph(name: str) -> Path:
    """A photograph that comes with scikit-image, whose other parts need not be installed."""
    spec = importlib.util.find_spec("skimage")
    return Path(spec.submodule_search_locations[0]) / "data" / name


def run(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BLOCKED, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def model() -> saywhere.Model:
    return saywhere.load(threads=1)


def test_the_picture_of_the_readme_is_what_make_demo_draws(tmp_path):
    (options,) = re.findall(r"describe \$\$photographs/\$\$name --out demo (.*) \|\|", (ROOT / "Makefile").read_text())
    picture, left = Image.open(ROOT / "docs" / "images" / "demo.png").convert("RGB"), 0
    for name in ("camera.png", "chelsea.png"):
        run("describe", photograph(name), "--out", tmp_path, *options.split())
        drawn = Image.open(tmp_path / name).convert("RGB")
        drawn = drawn.resize(
            (round(drawn.width * picture.height / drawn.height), picture.height), Image.Resampling.LANCZOS
        )
        part = picture.crop((left, 0, left + drawn.width, picture.height))
        far = np.abs(np.asarray(drawn, int) - np.asarray(part, int)).max(axis=2) > 60  # a palette is nearer
        assert far.mean() < 0.01, name
        left += drawn.width + 8
    assert left == picture.width + 8


def test_the_commands_need_neither_torch_nor_a_network(tmp_path):
    photo = photograph("motorcycle_left.png")
    described = run("describe", photo, "--top", 3, "--out", tmp_path / "drawn")
    assert "motorcycle" in described.stdout and described.stderr == ""
    assert Image.open(tmp_path / "drawn" / photo.name).size == (800, 539)
    grounded = json.loads(run("ground", photo, "a red motorcycle", "--json", "-").stdout)
    assert grounded["phrases"][0]["box"][2] > 500
    assert "a red motorcycle" in run("ground", photo, "a red motorcycle").stdout
    assert "motorcycle" in run("caption", photo).stdout
    assert "flickr-coco" in run("models").stdout


@pytest.mark.parametrize(("option", "value"), [("--engine", "torch"), ("--device", "cuda")])
def test_what_needs_torch_names_the_extra(option, value):
    done = run("describe", photograph("coffee.png"), option, value, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "needs the engine torch, " in done.stderr and "pip install 'saywhere[torch]'" in done.stderr
    assert ("; or leave it out, for the CPU" in done.stderr) == (option == "--device")


def test_one_encoding_answers_all_questions(model):
    seen = model.encode(photograph("motorcycle_left.png"))
    regions = model.describe(seen, top=5)
    assert regions.captions is not None and "motorcycle" in regions.captions[0]
    assert regions.scores is not None and regions.scores[0] > 0.8 and (np.diff(regions.scores) <= 0).all()
    caption = model.caption(seen)
    assert "motorcycle" in caption.words and caption.attention is not None
    np.testing.assert_allclose(caption.attention.sum(axis=1), 1, atol=1e-4)
    (box,) = model.ground(seen, ["a motorcycle"]).boxes
    assert saywhere.boxes.iou(box[None], regions.boxes[:1])[0, 0] > 0.5
    scores = model.score(seen, ["a motorcycle", "a cat in the snow"]).best().scores
    assert scores is not None and scores[0] > 100 * scores[1]
    images, texts = [model.embed(seen)], model.embed_text(["a man on a motorcycle", "a plate of food"])
    similarity = model.similarity(images, texts)
    assert similarity.shape == (1, 2) and similarity[0, 0] > similarity[0, 1]


def test_a_word_that_is_spelt_wrongly_comes_with_the_one_that_people_say(model):
    typed = ["gras", "elefant", "vilage", "rainbo", "dogg", "robots", "the cat's face"]
    meant = {"gras": "grass", "elefant": "elephant", "vilage": "village", "rainbo": "rainbow", "dogg": "dog"}
    meant |= {"robots": None}  # which captions hardly have
    assert model.placer("aligner").lexicon.unknown(typed) == meant


def test_a_shade_is_no_unknown_word_where_it_counts_as_a_colour(model):
    placer = model.placer("aligner")
    assert placer.lexicon.unknown(["a violet car"]) == {}
    assert [*placer.lexicon.unknown(["violet"])] == ["violet"]


def test_one_person_is_not_ten(model):
    """Captions seldom say ten: the words alone would say .28."""
    image = ROOT / "src/saywhere/serve/page/astronaut.jpg"
    placer, (indexed,) = model.placer(), embed_for_index(model, [image])
    _, _, agree = placer.find(model.encode(image), placer.read("ten people"))
    searched = PhrasesInImages(model, Query(("ten people",))).find(indexed)
    assert np.exp(agree[0]) < 0.05 and np.exp(searched.agree) < 0.05


def test_colours_count(model):
    """The astronaut's suit is orange. Ground and search agree, though an index has no pixels."""
    image = ROOT / "src/saywhere/serve/page/astronaut.jpg"
    encoding, (indexed,) = model.encode(image), embed_for_index(model, [image])
    chances = []
    for asked in ("an orange suit", "a green suit"):
        _, _, agree = model.placer().find(encoding, model.placer().read(asked))
        chances.append(np.exp([agree[0], PhrasesInImages(model, Query((asked,))).find(indexed).agree]))
    assert (chances[0] > 0.8).all() and (chances[1] < 0.4).all()


@pytest.mark.parametrize(("name", "narrow", "kind"), [("chelsea.png", "kitty", "cat"), ("coffee.png", "mug", "cup")])
def test_search_judges_a_narrower_noun_as_its_kind_and_says_so(model, tmp_path, name, narrow, kind):
    with saywhere.Index(tmp_path / "i", model) as index:
        index.add(photograph(name))
        (hit,), (wider,), (other,) = (index.search(f"a {noun}") for noun in (narrow, kind, "sparrow"))
        for form in ("a {}", "two {}", "a red {}", "a {} on the left", "a dog and a {}"):
            nouns = (plural(noun) if "two" in form else noun for noun in (narrow, kind))
            own, most = (index.search(form.format(noun))[0].probability for noun in nouns)
            assert own <= most + 1e-3, form
        (without,) = index.search("a thing", without="two sparrows")
    assert wider.probability >= hit.probability > 0.6 > LIKELY > other.probability
    assert hit.regions.captions == (f"a {narrow}",) and other.regions.not_found == ("a sparrow",)
    assert hit.to_dict()["judged_as"] == [f"{narrow} as {kind}"] and "judged_as" not in wider.to_dict()
    assert without.to_dict()["judged_as"] == ["sparrow as bird"]
    found = model.ground(photograph(name), ["a thing", f"the {narrow}", f"a {kind}"], threshold=0)
    assert found.judged_as == (f"{narrow} as {kind}",)


def test_what_the_index_would_find_is_left_out_where_it_is_not_wanted(model, monkeypatch):
    """Nobody who leaves out people wants an image that a search for people calls probable, however sure it is."""
    monkeypatch.setattr("saywhere.search.phrases.UNWANTED", 1.1)
    query = PhrasesInImages(model, Query(("a thing",), ("people",)))
    people, cup = (embed_for_index(model, [photograph(name)])[0] for name in ("astronaut.png", "coffee.png"))
    assert query.shows_unwanted(people, 50) and not query.shows_unwanted(cup, 50)
    monkeypatch.setattr("saywhere.search.phrases.UNWANTED_HIT", 1.1)
    assert not query.shows_unwanted(people, 50)


def test_a_noun_that_no_part_has_read_is_asked_for_as_its_kind(model):
    """A lorry is a truck, though no caption that taught the model has the word."""
    lexicon = model.placer("aligner").lexicon
    assert lexicon.translate("two red lorries") == "two red trucks" and not lexicon.unknown(["two red lorries"])
    assert lexicon.translate("a sparrow") == "a sparrow"  # read, if seldom
    found = model.ground(photograph("motorcycle_left.png"), ["a lorry", "a motorbike"], threshold=0)
    assert found.captions == ("a lorry", "a motorbike") and found.judged_as == ("lorry as truck",)


def test_no_word_is_suggested_that_the_model_hardly_read(model):
    """It knows the word robot, but from few captions."""
    assert model.placer("aligner").lexicon.unknown(["robots", "a girafe"]) == {"robots": None, "girafe": "giraffe"}


def test_the_sky_is_found_though_no_proposal_covers_it(model):
    """The man with a camera stands before the sky, in the upper third of the photograph."""
    seen = model.encode(photograph("camera.png"))
    proposals = model.describe(seen, threshold=0).boxes
    (box,) = model.ground(seen, ["the sky"]).boxes
    sky = np.array([[0, 0, 512, 160]])
    assert iou(box[None], sky)[0, 0] > 0.7 > iou(proposals, sky).max()


def test_given_boxes_are_described_in_their_order(model):
    boxes = [[100, 100, 700, 460], [0, 0, 80, 80]]
    regions = model.describe(photograph("motorcycle_left.png"), boxes)
    assert regions.boxes.tolist() == boxes and regions.captions is not None and "motorcycle" in regions.captions[0]
    assert len(model.describe(photograph("coffee.png"), np.zeros((0, 4)))) == 0


@pytest.mark.parametrize("size", [(1, 1), (3, 500), (500, 3), (33, 31)])
def test_odd_shapes(model, size):
    image = photographs.noise(*size)
    assert (model.describe(image).width, model.describe(image).height) == size
    assert model.caption(image).sentence
    found = model.ground(image, "a dog")
    assert len(found) + len(found.not_found) == 1


def folder(path: Path, count: int = 8) -> Path:
    """Photographs in other sizes, and two files that are damaged."""
    path.mkdir()
    names = ("coffee.png", "astronaut.png", "motorcycle_left.png")
    for number in range(count):
        image = Image.open(photograph(names[number % len(names)])).convert("RGB")
        image.resize((200 + 10 * number, 180)).save(path / f"{number:02}.jpg")
    whole = (path / "03.jpg").read_bytes()
    (path / "03.jpg").write_bytes(whole[: len(whole) // 3])
    (path / "07.jpg").write_text("no image")
    return path


def rows(path: Path) -> dict[str, dict]:
    return {row["image"]: row for row in map(json.loads, path.read_text().splitlines())}


def test_a_killed_run_is_resumed_and_ends_as_an_undisturbed_one(tmp_path):
    images = folder(tmp_path / "images")
    options = ("--threads", 1, "--batch", 2, "--top", 4)
    done = run("describe", images, "--json", tmp_path / "whole.jsonl", *options, check=False)
    assert done.returncode == 1 and done.stderr.count("skipped:") == 2
    expected = rows(tmp_path / "whole.jsonl")
    assert len(expected) == 6
    cut = tmp_path / "cut.jsonl"
    command = [sys.executable, "-c", KILLED, "describe", images, "--json", cut, "--out", tmp_path / "drawn", *options]
    killed = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(rows(cut)) == 3
    again = run("describe", images, "--json", cut, "--out", tmp_path / "drawn", *options, check=False)
    assert again.returncode == 1 and "already in" in again.stdout
    resumed = rows(cut)
    assert resumed.keys() == expected.keys()
    for name, row in resumed.items():
        assert row["captions"] == expected[name]["captions"]
        np.testing.assert_allclose(row["boxes"], expected[name]["boxes"], atol=0.5)
    assert len(list((tmp_path / "drawn").iterdir())) == 6
