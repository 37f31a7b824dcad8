"""Search in an index: how well it answers and whether it is there, and the command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from commands import error_of, report, run
from flickr_entities import write_flickr
from photographs import noise
from stubs import calibrated
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner

import saywhere
from saywhere import boxes as geometry
from saywhere.data import read
from saywhere.data.flickr import read_entities
from saywhere.evaluation import search
from saywhere.evaluation.search import (
    Answers,
    Group,
    answer,
    compare,
    fit_hits,
    is_right,
    marked_queries,
    measure,
    needed,
    nouns,
    pair_colours,
    said,
    score_texts,
    short_queries,
    spoken_queries,
    told,
)
from saywhere.models.aligner import ImageVectors, TextVectors, similarity_matrix
from saywhere.networks import checkpoint
from saywhere.search.phrases import LIKELY, PhrasesInImages, Query
from saywhere.search.store import Stamp, Store
from saywhere.text import Vocabulary


@pytest.fixture
def images() -> list[ImageVectors]:
    generator = np.random.default_rng(0)
    shapes = [(n, 8) for n in generator.integers(1, 5, 30)]
    vectors = [generator.standard_normal(shape, np.float32).astype(np.float16).astype(np.float32) for shape in shapes]
    return [ImageVectors(9, 9, np.zeros((len(v), 4)), v, str(i), np.zeros(len(v))) for i, v in enumerate(vectors)]


@pytest.fixture
def texts() -> list[TextVectors]:
    generator = np.random.default_rng(1)
    words = [generator.standard_normal((int(n), 8), np.float32) for n in generator.integers(1, 6, 150)]
    return [TextVectors(("w",) * len(w), w) for w in words]


@pytest.mark.parametrize("score", ["max", "fragments"])
def test_similarities_are_those_of_ranking(tmp_path, images, texts, score) -> None:
    matrix = similarity_matrix([i.vectors for i in images], [t.vectors for t in texts], score)
    with Store(tmp_path, {"size": "9"}) as store:
        store.put([(image.image, Stamp(0, 0), image) for image in images])
        found = np.stack(list(score_texts(store.snapshot(), texts, score)), 1)
    np.testing.assert_allclose(found, matrix, rtol=1e-4, atol=1e-5)


def test_a_place_is_right_in_an_image_that_shows_the_phrase() -> None:
    truth = {4: [np.array([0, 0, 10, 10.0]), np.array([20, 20, 40, 40.0])]}
    assert is_right(4, np.array([0, 0, 10, 5.0]), truth) and is_right(4, np.array([21, 21, 40, 40.0]), truth)
    assert not is_right(4, np.array([0, 0, 10, 4.9]), truth) and not is_right(5, np.array([0, 0, 10, 10.0]), truth)


def answers(seed: int) -> Answers:
    """Hits whose evidence tells, in part, whether they show the query."""
    generator = np.random.default_rng(seed)
    shown = generator.random((60, 4)) < 0.3
    evidence = np.stack((shown + generator.standard_normal((60, 4)), *-generator.random((5, 60, 4))), axis=-1)
    inside = generator.random(60) < 0.5
    in_index = inside | (generator.random(60) < 0.4)
    kinds = np.array(["noun", "pair"] * 30)
    return Answers(evidence, 0 * shown, shown, shown | True, shown, inside, in_index, kinds, np.full(60, 60))


def area(high: list[float], low: list[float]) -> float:
    return float(np.mean([(a > b) + 0.5 * (a == b) for a, b in product(high, low)]))


WORDS = Vocabulary.build(["a dog is running runs riding eating in near and of"])


def test_nouns_and_words_meet_in_the_singular() -> None:
    assert nouns("Two dogs run on the grass") == {"dog", "grass"} <= said(["A puppy.", "grass"], WORDS)
    assert nouns("two puppies on a beach") <= said(["A beach.", "puppies"], WORDS)
    assert not nouns("a dog on a sofa") <= said(["Two dogs on the grass."], WORDS)
    assert nouns("an animal on a beach") <= said(["Two puppies on the beach."], WORDS)
    assert not nouns("a dog on a beach") <= said(["An animal on the beach."], WORDS)


@pytest.mark.parametrize("caption", ["A dog runs on grass.", "Dogs run on grass.", "grass with a running dog"])
def test_an_image_shows_what_is_done_if_a_caption_says_so_in_any_form(caption: str) -> None:
    assert needed("a dog running on grass", WORDS) == {"dog", "grass", "running"} <= said([caption], WORDS)
    assert not needed("a dog running on grass", WORDS) <= said(["A dog sits on grass."], WORDS)
    assert needed("a running dog", WORDS) == {"dog"}


@pytest.mark.parametrize(
    ("caption", "shown"),
    [
        ("A small red car.", True),
        ("A crimson car.", True),
        ("A navy car.", None),
        ("A blue car.", False),
        ("A blue car, and a red bus.", None),  # the car may be red elsewhere
        ("A blue car, and a burgundy sky.", None),
        ("A red toy car beside a blue car.", True),
        ("A car.", None),
    ],
)
def test_a_colour_that_no_caption_says_is_wrong_only_if_they_say_another(caption, shown) -> None:
    assert told("a red car", said([caption], WORDS)) is shown


def test_colours_count_with_their_noun_and_more_general_ones() -> None:
    words = said(["A golden puppy sits by a black man in a gray coat."], WORDS)
    for query, shown in (("a gold dog", True), ("a grey coat", True), ("a gold coat", None), ("an old man", True)):
        assert told(query, words) is shown
    assert told("a white man", words) is True  # colours of people do not count


def test_colours_are_paired_with_images_of_such_a_thing_in_another_colour() -> None:
    sentences = [["a red car"], ["a blue car"], ["a car"], ["a red bus by a green car"], ["a black man", "a white man"]]
    assert pair_colours(sentences) == [
        *[(0, "a red car", True), (1, "a red car", False)],
        *[(1, "a blue car", True), (0, "a blue car", False)],
        *[(3, "a green car", True), (0, "a green car", False)],
    ]


def test_hits_whose_colours_no_caption_tells_are_left_out_of_the_figures() -> None:
    one, other = answers(0), answers(1)
    unsure = np.arange(4) >= 3
    found = [measure((replace(one, known=one.known & ~unsure, shown=one.shown ^ (unsure & wrong)), other))
             for wrong in (False, True)]  # fmt: skip
    assert found[0] is not None and found[0] == found[1]


def test_a_wrong_colour_lowers_the_probability_of_a_hit() -> None:
    one, other = answers(0), answers(1)
    agreeing = [replace(each, agree=np.where(each.shown, 0.0, -9.0)) for each in (one, other)]
    found, better = measure((one, other)), measure((agreeing[0], agreeing[1]))
    assert better.auc > 0.99 > found.auc and better.hit == found.hit


def test_each_half_is_judged_by_the_weights_of_the_other() -> None:
    one, other = answers(0), answers(1)
    found = measure((one, other))
    swapped = measure((one, one)), measure((other, other))
    own = swapped[1].hit.apply(one.evidence), swapped[0].hit.apply(other.evidence)
    scores, shown = np.concatenate(own), np.concatenate((one.shown, other.shown))
    assert found.auc == pytest.approx(area(scores[shown].tolist(), scores[~shown].tolist()))
    assert found.auc > 0.6 and found.hit.weights["odds"] > 0.3
    bins = [np.floor(scores * 10) == place for place in range(10)]
    table = [(scores[b].mean(), shown[b].mean(), b.sum()) for b in bins if b.any()]
    errors = sum(count * abs(mean - share) for mean, share, count in table) / scores.size
    assert found.calibration_error == pytest.approx(errors)
    assert found.queries == 120


def test_the_answers_of_two_uneven_halves_are_joined(tmp_path) -> None:
    model = aligner_model(tiny_aligner())
    model.calibration = calibrated(phrase=(0.02, 0.0, 0.0, 0.0))
    images = model.embed([noise(96, 64, number) for number in range(5)])
    queries = {"two dogs": ("phrase", frozenset((0, 4))), "a horse": ("phrase", frozenset((1,)))}
    words = [said(sentences, WORDS) for sentences in (["Two dogs."], ["A man."], ["A dog."], ["A horse."], [])]
    first = np.array([True, False, False, True, False])
    with Store(tmp_path, {"size": "17"}) as store:
        store.put([(str(number), Stamp(0, 0), image) for number, image in enumerate(images)])
        compared = list(compare(model, snapshot := store.snapshot(), queries, words))
        one, other = (answer(snapshot, compared, inside) for inside in (first, ~first))
    both = Answers.join([one, other])
    assert one.evidence.shape == (2, 2, 6) and other.evidence.shape == (2, 3, 6) and both.evidence.shape == (4, 3, 6)
    assert both.hits.sum(axis=1).tolist() == [2, 2, 3, 3] and not both.shown[~both.hits].any()
    assert both.shares.sum(axis=1).tolist() == [0.5, 0.5, 0.5, 0.5]  # the albums count alike
    assert one.albums.tolist() == [2, 2] and both.kinds.tolist() == ["phrase"] * 4
    assert one.inside.tolist() == [True, False] and other.inside.tolist() == [True, True]
    assert one.in_index.tolist() == [True, True] and other.in_index.tolist() == [True, False]
    assert one.shown.sum(axis=1).tolist() == [1, 1] and other.shown[1].tolist() == [False] * 3
    dogs = [PhrasesInImages(model, Query(("two dogs",))).find(images[entry], 0.0, 2) for entry in (0, 3)]
    best_first = [dog.evidence for dog in sorted(dogs, key=lambda dog: -dog.similarity)]
    np.testing.assert_allclose(one.evidence[0, :, :5], np.array(best_first)[:, :5], rtol=2e-2, atol=2e-2)
    lead = one.evidence[0, :, 5] * 102 / 2
    assert lead.tolist() == pytest.approx([1.0, -1.0])  # of two values, in standard deviations


def test_queries_are_what_people_type() -> None:
    assert spoken_queries("A zebra eating some grass near a very old wooden fence.", WORDS) == [
        ("sentence", "a zebra eating some grass near a very old wooden fence"), ("noun", "zebra"),
        ("phrase", "a zebra"), ("action", "a zebra eating"), ("noun", "grass"), ("phrase", "some grass"),
        ("noun", "fence"),
        ("pair", "a zebra eating some grass"),
        ("pair", "some grass near a very old wooden fence"),
    ]  # fmt: skip
    words = ["he", "and", "his", "dog", "with", "another", "one"]
    assert short_queries(words, [(0, 1), (2, 4), (5, 7)], WORDS) == [
        ("sentence", "he and his dog with another one"), ("noun", "dog"), ("phrase", "his dog"),
    ]  # fmt: skip
    assert short_queries(["the", "dog", "is", "running"], [(0, 2)], WORDS)[-1] == ("action", "the dog running")


def test_marked_phrases_with_boxes_are_asked_for(tmp_path) -> None:
    (image, *_) = read_entities(write_flickr(tmp_path), "dev")
    assert marked_queries(image, WORDS)[1:] == [
        ("noun", "man"), ("phrase", "a man in"),
    ]  # fmt: skip


def test_an_album_is_drawn_with_or_without_what_is_looked_for(tmp_path) -> None:
    model = aligner_model(tiny_aligner())
    model.calibration = calibrated(phrase=(0.02, 0.0, 0.0, 0.0))
    images = model.embed([noise(96, 64, number) for number in range(8)])
    words = ("a", "the", "one", "some", "each", "no", "any", "that")
    queries = {f"{word} dog": ("noun", frozenset((number,))) for number, word in enumerate(words)}
    with Store(tmp_path, {"size": "17"}) as store:
        store.put([(str(number), Stamp(0, 0), image) for number, image in enumerate(images)])
        snapshot = store.snapshot()
        for several in (8, 5):  # so many images show dogs
            texts = [said(["A dog."], WORDS)] * several + [said(["A cat."], WORDS)] * (8 - several)
            compared = list(compare(model, snapshot, queries, texts))
            found = answer(snapshot, compared[:several], np.ones(8, bool), album=3)
            assert found.inside.tolist() == ([True, False] * 4)[:several]
            assert found.albums.tolist() == [3] * several and found.evidence.shape == (several, 3, 6)
            assert found.in_index[::2].all() and found.in_index[1::2].all() == (several == 8)
    assert not found.in_index[1::2].any()  # there are enough without a dog


def test_figures_are_those_of_each_kind_and_size() -> None:
    one, other = answers(0), answers(1)
    other = replace(other, albums=np.full(60, 250))
    found = measure((one, other))
    keys = [(group.images, group.kind) for group in found.groups]
    assert keys == [(images, kind) for images in (60, 250) for kind in ("noun", "pair", "all")]
    fit = measure((other, other))
    pairs = slice(1, None, 2)
    p = fit.hit.apply(one.evidence)[pairs]
    order = (-p).argsort(axis=1)  # as a search shows its hits
    p, shown = np.take_along_axis(p, order, axis=1), np.take_along_axis(one.shown[pairs], order, axis=1)
    first = p[:, 0]
    group = next(group for group in found.groups if (group.images, group.kind) == (60, "pair"))
    assert isinstance(group, Group) and group.queries == 30
    assert group.right == pytest.approx(np.median(first[shown[:, 0]]))
    assert group.absent == pytest.approx(np.median(first[~one.in_index[pairs]]))
    assert group.found == pytest.approx((first[shown[:, 0]] >= LIKELY).mean())
    assert group.auc == pytest.approx(area(p[shown].tolist(), p[~shown].tolist()))


def test_nothing_is_said_where_all_or_no_hits_are_right() -> None:
    one = answers(0)
    for every in (True, False):
        same = replace(one, shown=np.full_like(one.shown, every))
        assert measure((one, same)) is None


def test_what_is_there_is_measured(tmp_path) -> None:
    model = checkpoint.save(tiny_aligner(), tmp_path / "model")
    calibrated(phrase=(0.02, 0.0, 0.0, 0.0)).write(model)
    flickr = write_flickr(tmp_path / "flickr8k")
    shutil.rmtree(flickr / "Entities")  # both cut the sentences, then
    command = ["evaluate", "search", "--data", str(flickr), "--out", str(tmp_path / "out"), "--device", "cpu"]
    command += ["--model", str(model)]
    first = run(*command)
    assert "probabilities of hits: AUC" in first.stdout
    there = report(tmp_path / "out")["presence"]
    for one in there["groups"]:
        line = f"{one['images']}\t{one['kind']}\t{one['queries']}\t{one['error']:.3f}\t"
        assert line in first.stdout
    assert there["queries"] > 20
    what = ["calibrate", str(model), "--what", "hit", "--data", str(flickr), "--device", "cpu"]
    done = run(*what)
    assert "split dev" in done.stdout, done.output
    assert "4 images are few" in done.stderr
    stored = json.loads((model / "calibration.json").read_text())
    run(*command)  # the vectors are taken over: they are the same
    again = report(tmp_path / "out")["presence"]
    assert again["queries"] == there["queries"]
    assert stored["hit"] == {**again["hit"]["weights"], "constant": again["hit"]["constant"]}
    assert set(stored["indexed_phrase"]) == {"similarity", "region", "named", "constant"}


def test_hits_are_fitted_with_what_the_model_knows_and_these_images_do_not_tell(tmp_path) -> None:
    """Four images do not tell which cars are red: the model keeps its answer, and searches with it."""
    folder = checkpoint.save(tiny_aligner(), tmp_path / "model")
    calibrated(phrase=(0.02, 0.0, 0.0, 0.0), asked_number=(0.3, 0.5, -1.0, 1.0), asked_colour=(0.1, 0.5, 1.0)).write(
        folder
    )
    model = saywhere.load(folder, "cpu")
    before, flickr = model.calibration, write_flickr(tmp_path / "flickr8k")
    fits = fit_hits(model, [read(flickr, split="dev")], "flickr8k").fits
    assert "hit" in fits and not {"asked_number", "asked_colour"} & {*fits}
    assert (
        model.calibration.asked_number == before.asked_number and model.calibration.asked_colour == before.asked_colour
    )


def test_images_without_sentences_are_searched_too_and_nothing_is_asked_of_them(tmp_path, monkeypatch) -> None:
    model = checkpoint.save(tiny_aligner(), tmp_path / "model")
    calibrated(phrase=(0.02, 0.0, 0.0, 0.0)).write(model)
    monkeypatch.setattr(search, "LARGER", (4, 10))
    rows = []
    for number, words in enumerate(("A dog.", "A horse and a man.", "A child.", "A white house.", "", "", "")):
        noise(48, 32, number).save(tmp_path / f"{number}.png")
        said_of = {"sentences": [words]} if words else {"regions": [{"box": [0, 0, 9, 9], "phrase": "a green dog"}]}
        rows.append(json.dumps({"image": f"{number}.png", "split": "dev", **said_of}))
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    command = ["evaluate", "search", "--data", str(tmp_path / "data.jsonl"), "--out", str(tmp_path / "out")]
    run(*command, "--model", model, "--device", "cpu")
    groups = report(tmp_path / "out")["presence"]["groups"]
    assert [one["images"] for one in groups if one["kind"] == "all"] == [2, 4, 5]
    queries = {"noun": 5, "phrase": 5, "pair": 1}
    assert {one["kind"]: one["queries"] for one in groups if one["images"] == 5} == {
        kind: 2 * count for kind, count in queries.items()
    } | {"all": 2 * sum(queries.values())}
    assert report(tmp_path / "out")["recall"]["queries"] == 4


def test_training_images_of_another_data_set_are_searched_beside_those_asked_about(tmp_path, monkeypatch) -> None:
    model = checkpoint.save(tiny_aligner(), tmp_path / "model")
    calibrated(phrase=(0.02, 0.0, 0.0, 0.0)).write(model)
    monkeypatch.setattr(search, "LARGER", (4, 10))
    for name, split, texts in (
        ("own", "dev", ("A dog.", "A horse and a man.", "A child.", "A white house.")),
        ("own", "train", ("A man.",)),
        ("more", "train", ("A dog.", "A green house.")),
        ("more", "val", ("A child.",)),
    ):
        with (tmp_path / f"{name}.jsonl").open("a") as rows:
            for number, words in enumerate(texts):
                noise(48, 32, len(words) + number).save(tmp_path / f"{name}-{split}-{number}.png")
                image = {"image": f"{name}-{split}-{number}.png", "split": split, "sentences": [words]}
                rows.write(json.dumps(image) + "\n")
    with (tmp_path / "more.jsonl").open("a") as rows:
        rows.write(json.dumps({"image": "own-dev-0.png", "split": "train", "sentences": ["A dog."]}) + "\n")
        rows.write(json.dumps({"image": "gone.png", "split": "train", "sentences": ["A dog."]}) + "\n")
    out = ["--data", str(tmp_path / "own.jsonl"), "--model", model, "--device", "cpu", "--out", str(tmp_path / "out")]
    run("evaluate", "search", *out)
    recall = report(tmp_path / "out")["recall"]
    among = ("--among", tmp_path / "own.jsonl", "--among", tmp_path / "more.jsonl")
    done = run("evaluate", "search", *out, *among, code=1)
    assert f"{tmp_path / 'more.jsonl'}: " in done.stderr and "gone.png" in done.stderr
    found = report(tmp_path / "out")
    assert found["recall"] == recall and (found["images"], found["images_beside"]) == (4, 3)
    groups = {one["images"]: one["queries"] for one in found["presence"]["groups"] if one["kind"] == "all"}
    assert groups == {2: 22, 4: 22, 5: 22}  # nothing is asked of the others
    missing = run("evaluate", "search", *out[:-1], str(tmp_path / "early"), "--among", str(tmp_path / "none"), code=2)
    assert str(tmp_path / "none") in missing.stderr
    unsure = checkpoint.save(tiny_aligner(), tmp_path / "unsure")
    early = ["--model", unsure, "--device", "cpu", "--out", str(tmp_path / "early")]
    refused = run("evaluate", "search", *out[:2], *early, "--among", str(tmp_path / "more.jsonl"), code=2)
    assert refused.stderr.count("\n") == 1 and "--among" in refused.stderr
    assert not list((tmp_path / "early").rglob("*.safetensors"))  # both are refused before any image is embedded


def test_a_model_that_is_not_calibrated_for_phrases_cannot_be_for_hits(tmp_path) -> None:
    model, flickr = checkpoint.save(tiny_aligner(), tmp_path / "model"), write_flickr(tmp_path / "flickr8k")
    command = ["calibrate", str(model), "--what", "hit", "--data", str(flickr), "--device", "cpu"]
    assert "calibrate --what phrase" in error_of(run(*command, code=2))


def test_recall_equals_that_of_rank_and_phrases_are_looked_for(tmp_path) -> None:
    model = str(checkpoint.save(tiny_aligner(), tmp_path / "model"))
    flickr = write_flickr(tmp_path / "flickr8k")
    for task in ("rank", "search"):
        command = ["evaluate", task, "--model", model, "--data", str(flickr), "--out", str(tmp_path / task)]
        result = run(*command, "--device", "cpu")
        assert result.stderr == ""
    rank, search = report(tmp_path / "rank"), report(tmp_path / "search")
    assert search["recall"] == rank["text_to_image"]
    assert (search["images"], search["sentences"], search["phrases"]) == (4, 8, 4)
    assert "4 phrases" in result.stdout and (tmp_path / "search" / "index" / "index.sqlite").is_file()

    reader = aligner_model(tiny_aligner())
    paths = [flickr / "Images" / f"{n}_x.jpg" for n in range(4)]
    images, right = reader.embed(paths), 0
    for number, sentence in enumerate(SENTENCES):
        phrase = " ".join(sentence.lower().rstrip(".").split()[:3])
        first = int(reader.similarity(images, [reader.embed_text(phrase)])[:, 0].argmax())
        box = reader.ground(paths[first], [phrase]).boxes
        right += first == number and geometry.iou(box, np.array([[0.0, 0, 40, 60]]))[0, 0] >= 0.5
    assert search["hit"] == right / 4
