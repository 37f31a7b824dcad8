"""The model and its verbs, on every engine: one image, a list or a stream; encodings; what a user can do wrong."""

from __future__ import annotations

import inspect
import itertools
import pickle
import weakref
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from photographs import noise
from refusals import refuses
from tiny_aligner import SENTENCES
from tiny_bundle import PARTS, bundle_model, exported_bundle

import saywhere
from saywhere import Alignment, Caption, Encoding, ImageError, Model, Regions, UserError
from saywhere.models.aligner import ImageVectors

IMAGES = [noise(130, 90, 0), noise(64, 96, 1), noise(50, 50, 2), noise(97, 33, 3)]
BOXES = [[[4.0 + i, 3, 40, 30], [0, 0, 50, 33]] for i in range(4)]
TEXTS = list(SENTENCES)
PHRASES = [["a red shirt", "a dog"], ["the sky"], ["two dogs"], ["a white house", "a man"]]
Ask = Callable[..., Any]

VERBS: dict[str, tuple[Ask, list[Any]]] = {
    "encode": (lambda m, images: m.encode(images), []),
    "describe": (lambda m, images: m.describe(images), []),
    "describe the best": (lambda m, images: m.describe(images, top=3, threshold=0.01), []),
    "describe boxes": (lambda m, images, boxes: m.describe(images, boxes), [BOXES]),
    "ground a sentence": (lambda m, images, text: m.ground(images, text), [TEXTS]),
    "ground phrases": (lambda m, images, text: m.ground(images, text), [PHRASES]),
    "ground in boxes": (lambda m, images, text, boxes: m.ground(images, text, boxes), [TEXTS, BOXES]),
    "ground phrases in boxes": (lambda m, images, text, boxes: m.ground(images, text, boxes), [PHRASES, BOXES]),
    "ground by the aligner": (lambda m, images, text: m.ground(images, text, part="aligner"), [PHRASES]),
    "ground by densecap": (lambda m, images, text: m.ground(images, text, part="densecap"), [TEXTS]),
    "align": (lambda m, images, text: m.align(images, text, regions=4), [TEXTS]),
    "align in boxes": (lambda m, images, text, boxes: m.align(images, text, boxes, beta=0.0), [TEXTS, BOXES]),
    "embed": (lambda m, images: m.embed(images), []),
    "embed boxes": (lambda m, images, boxes: m.embed(images, boxes), [BOXES]),
    "caption": (lambda m, images: m.caption(images), []),
    "caption greedily": (lambda m, images: m.caption(images, beam_size=1, attention=False), []),
}


@pytest.fixture(scope="module", params=["torch", "onnx"])
def model(request: pytest.FixtureRequest) -> Model:
    return saywhere.load(exported_bundle(), "cpu", engine=request.param)


def same(one: Any, other: Any) -> None:
    """Two results of one kind have the same values, but for rounding."""
    assert type(one) is type(other)
    assert (one.width, one.height) == (other.width, other.height)
    if isinstance(one, Encoding):
        assert (one.input_size, one.image) == (other.input_size, other.image)
        return
    close(one.boxes, other.boxes, 1e-3)
    if isinstance(one, Regions):
        assert one.captions == other.captions
        close(one.scores, other.scores)
        close(one.similarities, other.similarities)
    elif isinstance(one, Alignment):
        assert one.words == other.words and one.beta == other.beta
        close(one.products, other.products)
    elif isinstance(one, ImageVectors):
        close(one.vectors, other.vectors)
        close(one.logits, other.logits)
    else:
        assert isinstance(one, Caption) and one.sentence == other.sentence
        close(one.attention, other.attention)


def close(one: np.ndarray | None, other: np.ndarray | None, atol: float = 1e-4) -> None:
    if one is None or other is None:
        assert one is other
    else:
        np.testing.assert_allclose(one, other, atol=atol)


@pytest.mark.parametrize("verb", VERBS)
def test_a_list_and_a_stream_are_answered_as_one_at_a_time(model: Model, verb: str):
    ask, columns = VERBS[verb]
    alone = [ask(model, *row) for row in zip(IMAGES, *columns, strict=True)]
    together = ask(model, IMAGES, *columns)
    streamed = ask(model, iter(IMAGES), *map(iter, columns))
    assert isinstance(together, list) and isinstance(streamed, Iterator)
    encoded = model.encode(IMAGES)
    of_encodings = ask(model, [IMAGES[0], *encoded[1:]], *columns)
    for results in zip(alone, together, streamed, of_encodings, strict=True):
        for other in results[1:]:
            same(results[0], other)
    assert ask(model, [], *([] for _ in columns)) == []
    assert list(ask(model, iter([]), *([] for _ in columns))) == []


def test_encodings_are_read_again_and_the_network_sees_an_image_once(model: Model, monkeypatch: pytest.MonkeyPatch):
    trunk, seen = model.engine.trunk, []
    encode = trunk.encode
    monkeypatch.setattr(trunk, "encode", lambda pixels: seen.append(len(pixels)) or encode(pixels))
    encoding = model.encode(IMAGES[0])
    assert isinstance(encoding, Encoding) and (encoding.width, encoding.height) == (130, 90)
    assert encoding.input_size == (96, 64) and encoding.scale == (130 / 96, 90 / 64)
    for verb, (ask, columns) in VERBS.items():
        result = ask(model, encoding, *(column[0] for column in columns))
        assert result is encoding if verb == "encode" else result is not None
    model.score(encoding, ["a dog"])
    model.attend(encoding, ["a dog"])
    assert seen == [1]
    first, second, third = model.encode([IMAGES[1], encoding, IMAGES[2]])
    assert seen == [1, 2] and second is encoding and [e.width for e in (first, third)] == [64, 50]


def test_an_encoding_of_another_model_is_refused(model: Model):
    other = bundle_model().encode(IMAGES[0])
    for ask, columns in VERBS.values():
        with pytest.raises(UserError, match="^the encoding of <image> was made by another model; encode"):
            ask(model, other, *(column[0] for column in columns))
        refuses("was made by another model", ask, model, [IMAGES[1], other], *(column[:2] for column in columns))


def test_what_it_is(model: Model):
    assert model.parts == PARTS and model.long_side == 96 and model.name == "tiny"
    assert repr(model) == "Model('tiny': densecap, aligner, captioner)"
    assert model.digest() == saywhere.load(exported_bundle(), "cpu", engine=_engine(model)).digest()
    changed = saywhere.load(exported_bundle(), "cpu", engine=_engine(model), options={"final_nms": 0.3})
    assert changed.digest() != model.digest()


def _engine(model: Model) -> str:
    return "onnx" if type(model.engine).__name__ == "OnnxEngine" else "torch"


def test_a_model_that_is_no_longer_used_is_freed_at_once(model: Model):
    """Python looks for cycles when many objects were made, and the weights of a model are few."""
    other = saywhere.load(exported_bundle(), "cpu", engine=_engine(model))
    for ask, columns in VERBS.values():
        ask(other, IMAGES[0], *(column[0] for column in columns))
    engine = weakref.ref(other.engine)
    del other
    assert engine() is None


# Describing


def test_top_and_threshold_cut_one_ranking(model: Model):
    regions = model.describe(IMAGES[0])
    assert regions.scores is not None and len(regions) > 4 and (np.diff(regions.scores) <= 0).all()
    same(model.describe(IMAGES[0], top=2), regions[:2])
    same(model.describe(IMAGES[0], threshold=float(regions.scores[2])), regions[:3])
    same(model.describe(IMAGES[0], top=0), regions)
    assert len(model.describe(IMAGES[0], threshold=1)) == 0
    refuses("^top must be at least 0, not -1$", model.describe, IMAGES[0], top=-1)
    refuses("^threshold must be a probability, not 30$", model.describe, IMAGES[0], threshold=30)
    with pytest.raises(UserError, match="top and threshold choose among the boxes that are found"):
        model.describe(IMAGES[0], BOXES[0], threshold=0.5)


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ("everything", "boxes need four numbers each, x1 y1 x2 y2"),
        ([[None, 0, 10, 10]], r"box 0 \[nan, 0.0, 10.0, 10.0\] is not inside the 130 x 90 image"),
        ([[0, 0, 132, 10]], r"box 0 \[0.0, 0.0, 132.0, 10.0\] is not inside the 130 x 90 image"),
    ],
)
def test_wrong_boxes_are_one_line_for_every_verb(model: Model, boxes: Any, message: str):
    verbs: list[Callable[[], Any]] = [
        lambda: model.describe(IMAGES[0], boxes),
        lambda: model.describe([IMAGES[1], IMAGES[0]], [[[0, 0, 10, 10]], boxes]),
        lambda: model.score(IMAGES[0], ["a dog"], boxes),
        lambda: model.ground(IMAGES[0], "a dog", boxes),
        lambda: model.ground(IMAGES[0], ["a dog"], boxes),
        lambda: model.align(IMAGES[0], "a dog", boxes),
        lambda: model.embed(IMAGES[0], boxes),
    ]
    for verb in verbs:
        refuses(f"^<image>: {message}", verb)


# Grounding


def test_who_grounds_follows_from_the_text_and_the_parts(model: Model):
    sentence, phrases = model.ground(IMAGES[0], TEXTS[0]), model.ground(IMAGES[0], PHRASES[0])
    assert sentence.captions == ("a man", "a red shirt", "a horse") and sentence.similarities is None
    segments = model.align(IMAGES[0], TEXTS[0], beta=0.1).regions()
    assert segments.scores is None and segments.similarities is not None
    assert " ".join(segments.captions or ()) == "a man in a red shirt rides a horse"
    assert phrases.similarities is None and phrases.scores is not None and phrases.captions == tuple(PHRASES[0])
    scored = model.score(IMAGES[0], PHRASES[0])
    same(phrases, scored.best())
    by_aligner = model.ground(IMAGES[0], PHRASES[0], part="aligner")
    assert by_aligner.scores is None and by_aligner.captions == tuple(PHRASES[0])
    same(model.ground(IMAGES[0], TEXTS[0], part="densecap"), sentence)
    assert model.ground(IMAGES[0], "running").captions == ("running",)
    few = model.ground(IMAGES[0], PHRASES[0], regions=1)
    assert few.boxes.tolist() == [model.describe(IMAGES[0], top=1).boxes[0].tolist()] * 2
    assert len(model.ground(IMAGES[0], [])) == len(model.ground(IMAGES[0], [], part="aligner")) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.align(IMAGES[0], TEXTS[0], beta=-0.5), "beta must be at least 0, not -0.5"),
        (lambda m: m.ground(IMAGES[0], TEXTS[0], part="captioner"), "part must be aligner or densecap, not .captioner"),
        (lambda m: m.ground(IMAGES[0], "?!"), r"the phrase '\?!' has no word"),
        (lambda m: m.ground(IMAGES[0], ["a dog", ""]), "the phrase '' has no word"),
        (lambda m: m.ground(IMAGES[0], ["a dog", ""], part="aligner"), "the phrase '' has no word"),
        (lambda m: m.ground(IMAGES[0], ["a dog"], np.zeros((0, 4))), "<image>: no box is given to choose among"),
        (lambda m: m.ground(IMAGES[:2], ["a dog"]), "1 values for 2 images"),
        (lambda m: m.ground(IMAGES[0], None), "text must be a string or a list of strings, not NoneType"),
        (lambda m: m.ground(IMAGES[0], ["a dog", 1]), "text must be a string or a list of strings, not int"),
        (lambda m: m.score(IMAGES[0], [[0, 0, 9, 9]]), "phrases must be a list of strings, not list of lists"),
        (lambda m: m.similarity(IMAGES, ["a dog"]), "similarity compares what embed returns, not "),
        (lambda m: m.similarity(m.embed(IMAGES), ["a dog"]), "similarity compares what embed_text returns, not str"),
        (lambda m: m.ground(IMAGES[:2], ["a dog", b"a cat"]), "text must be a string or a list of strings, not bytes"),
        (lambda m: m.score(IMAGES[0], ["a dog", " ?!"]), r"' \?!' has no word"),
        (lambda m: m.score(IMAGES[0], ["dog " * 201]), "a phrase has 201 words; 200 are the most that are scored"),
        (lambda m: m.score(IMAGES[0], "dog"), r"phrases must be a list of strings, not one string: \['dog'\]"),
        (lambda m: m.score(IMAGES[0], iter(["dog"])), "phrases must be a list of strings, not list_iterator"),
        (lambda m: m.align(IMAGES[0], 5), "sentences must be a list of strings, not int"),
        (lambda m: m.embed_text(None), "texts must be a string or a list of strings, not NoneType"),
        (lambda m: m.similarity(m.embed(IMAGES[0]), [m.embed_text("a dog")]), "put one image, or one text, into brac"),
        (lambda m: m.align(IMAGES[0], "a dog", regions=-1), "regions must be at least 0, not -1"),
        (lambda m: m.align(IMAGES[0], "?"), r"the sentence '\?' has no word"),
        (lambda m: m.embed_text(["a dog", " "]), "the sentence ' ' has no word"),
        (lambda m: m.attend(IMAGES[0], "a dog"), r"sentences must be a list of strings, not one string: \['a dog'\]"),
        (lambda m: m.attend(IMAGES[:1], ["a dog"]), "an image must be a path, PIL image or array, not list"),
        (lambda m: m.caption(IMAGES[0], beam_size=0), "beam_size must be at least 1, not 0"),
        (lambda m: m.caption(IMAGES[0], boxes=BOXES[0]), "a captioner that attends to grid takes no boxes"),
        (lambda m: m.describe([IMAGES[0], None]), r"images\[1\]: an image must be a path, .* array, not NoneType"),
        (lambda m: m.describe({"a.jpg": 1}), "an image must be a path, PIL image or array, not dict"),
        (lambda m: m.describe({}), "an image must be a path, PIL image or array, not dict"),
        (lambda m: m.describe(3), "an image must be a path, PIL image or array, not int"),
        (lambda m: m.caption(b"a.jpg"), "an image must be a path, PIL image or array, not bytes"),
        (lambda m: m.describe(BytesIO(b"a.jpg")), "an image must be a path, PIL image or array, not BytesIO"),
        (lambda m: m.describe("."), r"^\.: is a folder, not an image; saywhere\.describe takes folders$"),
        (
            lambda m: list(m.embed(iter([IMAGES[0], [IMAGES[1]]]))),
            "an image must be a path, PIL image or array, not list",
        ),
        (lambda m: m.describe(IMAGES[0], top="3"), "top must be a whole number, not '3'"),
        (lambda m: m.score(IMAGES[0], ["a dog"]).find("a dog", -1), "top must be a whole number of at least 0, not -1"),
        (lambda m: m.describe(IMAGES[0], threshold=float("nan")), "threshold must be a number, not nan"),
        (lambda m: m.align(IMAGES[0], TEXTS[0], beta="1"), "beta must be a number, not '1'"),
        (lambda m: m.ground(IMAGES[0], PHRASES[0], regions=0), "regions must be a whole number of at least 1, not 0"),
        (
            lambda m: m.ground(IMAGES[0], PHRASES[0], regions=2.5),
            "regions must be a whole number of at least 1, not 2.5",
        ),
        (lambda m: m.align(IMAGES[0], TEXTS[0], beta=float("inf")), "beta must be a number, not inf"),
        (lambda m: m.embed(IMAGES[0], regions="all"), "regions must be a whole number, not 'all'"),
        (lambda m: m.caption(IMAGES[0], beam_size=3.0), "beam_size must be a whole number, not 3.0"),
    ],
)
def test_what_a_user_does_wrong_is_one_line(model: Model, call: Callable[[Model], Any], message: str):
    refuses(message, call, model)


def test_an_image_that_cannot_be_read_is_named(model: Model, tmp_path: Path):
    (tmp_path / "text.jpg").write_text("I am not an image.")
    for ask, columns in VERBS.values():
        with pytest.raises(ImageError, match=r"text\.jpg: not an image") as caught:
            ask(model, tmp_path / "text.jpg", *(column[0] for column in columns))
        assert "\n" not in str(caught.value)
    for before in (2, 16):
        stream = model.describe(iter([*(IMAGES * 4)[:before], tmp_path / "text.jpg", IMAGES[0]]))
        for found, image in zip(itertools.islice(stream, before), IMAGES * 4, strict=False):
            same(found, model.describe(image))
        refuses(r"^/.*text\.jpg: not an image", next, stream, kind=ImageError)


@pytest.mark.parametrize("many", [list, iter], ids=["list", "iterator"])
def test_an_array_that_is_no_image_is_named_by_its_place(model: Model, many: Callable[[Any], Any]):
    bad, colours = np.zeros((4, 4, 7), np.uint8), r"an array image must have shape \(H, W\), .*, not \(4, 4, 7\)"
    for before in (0, 1, 9):
        with pytest.raises(ImageError, match=rf"^images\[{before}\]: {colours}"):
            list(model.describe(many([*[IMAGES[0]] * before, bad, IMAGES[1]]), batch=4))
    refuses(f"^{colours}", model.describe, bad, kind=ImageError)


# Vectors and sentences


def test_similarity_is_the_sum_over_the_words_of_their_best_region(model: Model):
    images, texts = model.embed(IMAGES), model.embed_text(TEXTS)
    table = model.similarity(images, texts)
    assert table.shape == (4, 4) and table.dtype == np.float32
    for k, image in enumerate(images):
        assert image.boxes[0].tolist() == [0, 0, image.width, image.height] and len(image) == len(image.vectors) > 1
        for i, text in enumerate(texts):
            products = text.vectors @ image.vectors.T
            assert table[k, i] == pytest.approx(products.max(axis=1).sum(), rel=1e-4)
    assert model.embed_text(TEXTS[0]).words == ("a", "man", "in", "a", "red", "shirt", "rides", "a", "horse")
    assert len(model.embed_text(TEXTS[0])) == 10, "the sentence has a vector too"
    assert model.embed_text([]) == [] and model.similarity([], texts).shape == (0, 4)
    np.testing.assert_allclose(model.similarity(model.embed(iter(IMAGES)), iter(texts)), table, atol=1e-5)
    many = [f"{'a red ' * (number % 7)}dog {number}" for number in range(300)]
    alone, last = model.embed_text(many[299]), model.embed_text(many)[299]
    np.testing.assert_allclose(last.vectors, alone.vectors, atol=1e-5)
    assert last.words == alone.words


def test_given_boxes_come_back_as_they_are(model: Model):
    boxes = [[1.1, 2.3, 101.7, 88.9]]
    for result in (model.describe(IMAGES[0], boxes), model.embed(IMAGES[0], boxes)):
        assert result.boxes[-1].tolist() == np.float32(boxes)[0].tolist()


def test_attention_of_a_caption_is_that_of_its_sentence(model: Model):
    caption = model.caption(IMAGES[0])
    assert caption.attention is not None and caption.boxes is not None and len(set(caption.words)) > 1
    assert caption.attention.shape == (len(caption.words), 4) and len(caption.boxes) == 4
    np.testing.assert_allclose(caption.attention.sum(axis=1), 1, rtol=1e-5)
    attended, other = model.attend(IMAGES[0], [caption.sentence, "a dog"])
    np.testing.assert_allclose(attended.attention, caption.attention, atol=1e-5)
    assert other.words == ("a", "dog") and other.to_dict()["caption"] == "a dog"
    plain = model.caption(IMAGES[0], attention=False)
    assert plain.sentence == caption.sentence and plain.attention is plain.boxes is None
    assert {caption.sentence for caption in model.caption(IMAGES, beam_size=1)} != {caption.sentence}


# Models with some of the parts

CALLS: dict[str, tuple[str, Callable[[Model], Any]]] = {
    "find regions": ("densecap", lambda m: m.describe(IMAGES[0])),
    "score phrases of regions": ("densecap", lambda m: m.score(IMAGES[0], ["a dog"])),
    "ground phrases by the dense captioner": ("densecap", lambda m: m.ground(IMAGES[0], ["a dog"], part="densecap")),
    "align words with regions": ("aligner", lambda m: m.align(IMAGES[0], "a dog")),
    "embed images": ("aligner", lambda m: m.embed(iter(IMAGES))),
    "embed texts": ("aligner", lambda m: m.embed_text("a dog")),
    "compare texts with images": ("aligner", lambda m: m.similarity([], [])),
    "caption images": ("captioner", lambda m: m.caption(IMAGES[0])),
    "attend to regions": ("captioner", lambda m: m.attend(IMAGES[0], ["a dog"])),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_model_says_which_part_it_lacks(part: str):
    model = bundle_model(**{part: {}})
    assert model.parts == (part,)
    for what, (needed, call) in CALLS.items():
        if needed == part:
            assert call(model) is not None
            continue
        said = refuses("", call, model)
        wanted = f"tiny cannot {what}: that needs a model with the part {needed}; this one has {part}"
        assert said == wanted
    if part == "captioner":
        refuses("boxes need another model", model.describe, IMAGES[0], BOXES[0])


def test_phrases_are_grounded_by_the_aligner_where_there_is_no_dense_captioner():
    regions = bundle_model(aligner={}).ground(IMAGES[0], PHRASES[0])
    assert regions.similarities is not None and regions.captions == tuple(PHRASES[0])


@pytest.mark.parametrize("verb", ["encode", "describe", "score", "ground", "align", "embed", "embed_text", "caption"])
def test_help_shows_what_a_verb_takes_and_returns(verb: str) -> None:
    signature = inspect.signature(getattr(Model, verb))
    assert "Any" not in str(signature) and "list[" in str(signature.return_annotation)


def test_a_model_and_its_encodings_say_that_they_cannot_be_pickled(model: Model):
    encoding = model.encode(IMAGES[0])
    for whole in (model, model.caption, encoding, [encoding]):
        refuses(r"^a model cannot be pickled, .* call saywhere\.load in each process$", pickle.dumps, whole)
    found = model.describe(encoding)
    assert pickle.loads(pickle.dumps(found)).to_dict() == found.to_dict()
