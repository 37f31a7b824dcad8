"""Models of the hub as graphs: answers beside those of transformers, without it, and what does not fit in one line."""

from __future__ import annotations

import functools
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from photographs import noise
from refusals import refuses

pytest.importorskip("tokenizers", reason="needs the extra hub")
pytest.importorskip("torch", reason="exports the graphs with torch")

from tiny_adapters import tiny_adapted, tiny_folder, transformers
from tiny_graphs import GENERATION, stored_processor, tiny_graphs

import saywhere
from saywhere import UserError
from saywhere.adapters.sources import find_adapted
from saywhere.engines.onnx import missing

SIZES = [noise(96, 64, 0), noise(50, 70, 1), noise(64, 64, 2)]
IMAGES = [noise(64, 64, number) for number in range(3)]
"""As large as the network sees them: resized images differ by the rounding of torchvision's."""
PROMPTS = ["What does the image describe?", "Locate the phrases in the caption: a dog", "x"]


@functools.cache
def opened(kind: str) -> Any:
    """The tiny model's graphs as they are, opened once."""
    return saywhere.load(tiny_graphs(kind))


def copied(tmp_path: Path, kind: str = "florence2", **generation: Any) -> Path:
    folder = Path(shutil.copytree(tiny_graphs(kind), tmp_path / "copy"))
    if generation:
        (folder / "generation_config.json").write_text(json.dumps({**GENERATION, **generation}))
    return folder


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def generated(rules: dict[str, Any], beam_size: int, most: int) -> tuple[list[list[int]], list[np.ndarray]]:
    """What transformers generates for the same prompts, without what it is padded with; greedily, also the scores."""
    runner = tiny_adapted("florence2").adapter.runner
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner.network, "generation_config", transformers.GenerationConfig(**rules))
        out = runner.network.generate(
            **runner.prepare(IMAGES, PROMPTS, padding=True), max_new_tokens=most, num_beams=beam_size,
            do_sample=False, output_scores=True, return_dict_in_generate=True,
        )  # fmt: skip
    ends = np.atleast_1d(rules["eos_token_id"])
    rows: list[list[int]] = []
    for row in out.sequences[:, 1:].tolist():
        stop = next((i for i, token in enumerate(row) if token in ends), len(row) - 1)
        rows.append(row[: stop + 1])
    scores = [np.stack([s[i].log_softmax(-1).numpy() for s in out.scores]) for i in range(len(rows))]
    return rows, [own[np.arange(len(row)), row] for own, row in zip(scores, rows, strict=True)]


RULES: list[dict[str, Any]] = [
    {},
    {"no_repeat_ngram_size": 2, "length_penalty": 2.0},
    {"no_repeat_ngram_size": None, "forced_bos_token_id": None, "forced_eos_token_id": None, "length_penalty": 0.5},
    {"no_repeat_ngram_size": 1},
]


@pytest.mark.parametrize("rules", RULES)
def test_tokens_are_those_that_transformers_generates(rules: dict[str, Any], tmp_path: Path):
    rows = generated({**GENERATION, **rules}, 1, 14)[0]
    rules = {**rules, "eos_token_id": [2, rows[0][5], rows[1][8]]}  # so that answers end, and at different lengths
    runner = saywhere.load(copied(tmp_path, **rules)).adapter.runner
    for beam_size in (1, 3):
        wanted, log_probs = generated({**GENERATION, **rules}, beam_size, 14)
        found = runner.write(IMAGES, PROMPTS, 14, beam_size)
        assert [token_ids for token_ids, _ in found] == wanted
        assert min(map(len, wanted)) < 14 or beam_size > 1
        for (_, own), theirs in zip(found, log_probs, strict=True) if beam_size == 1 else ():
            np.testing.assert_allclose(own, theirs, atol=1e-5)


def test_answers_are_those_of_transformers(monkeypatch: pytest.MonkeyPatch):
    theirs, ours = tiny_adapted("florence2"), opened("florence2")
    for name, value in GENERATION.items():
        monkeypatch.setattr(theirs.adapter.runner.network.generation_config, name, value, raising=False)
    kind = type(theirs.adapter)
    monkeypatch.setattr(kind, "most_tokens", 40)
    monkeypatch.setattr(kind, "caption_tokens", 12)
    assert type(ours.adapter) is kind and ours.parts == theirs.parts
    boxes = [[[0, 0, 20, 30], [5, 5, 50, 60]], [[1, 2, 30, 40]], []]
    phrases = [["a dog", "the red sky"], ["a cat"], []]
    asked: list[Callable[[Any], Any]] = [
        lambda model: model.describe(IMAGES),
        lambda model: model.describe(IMAGES, boxes),
        lambda model: model.ground(IMAGES, phrases, threshold=0),
    ]
    for ask in asked:
        for one, other in zip(ask(ours), ask(theirs), strict=True):
            assert one.captions == other.captions and one.not_found == other.not_found
            np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-3)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
    for beam_size in (1, 3):
        found = [[str(each) for each in model.caption(IMAGES, beam_size=beam_size)] for model in (ours, theirs)]
        assert found[0] == found[1]


PROCESSORS = {"florence2": "CLIPImageProcessorPil", "grounding-dino": "GroundingDinoImageProcessorPil"}


@pytest.mark.parametrize("kind", PROCESSORS)
def test_images_are_prepared_as_transformers_prepares_them(kind: str):
    """By Pillow, as when the networks were trained: torchvision rounds in another way."""
    theirs = getattr(transformers, PROCESSORS[kind])(**stored_processor(tiny_folder(kind)))
    prepare = opened(kind).adapter.runner.pixels
    for image in (*SIZES, noise(300, 40, 3), noise(33, 301, 4), noise(90, 89, 5)):
        wanted = theirs([image], return_tensors="np")["pixel_values"]
        np.testing.assert_allclose(prepare([image]), wanted, atol=1e-5)


def test_detectors_answer_as_by_transformers():
    theirs, ours = tiny_adapted("grounding-dino"), opened("grounding-dino")
    assert type(ours.adapter) is type(theirs.adapter) and ours.parts == ("aligner",)
    long = " ".join(["a cat in the sky"] * 9)
    asked = [["A cat?", "the red. sky"], ["a dog"], [long, "it", "a zyzzyva", *["a red image of the sky"] * 5]]
    one_size, sizes = ([noise(*size, n) for n, size in enumerate(own)] for own in ([(128, 128)] * 3, WIDE))
    for images in (one_size, sizes):
        found, wanted = (model.ground(images, asked, threshold=0.01) for model in (ours, theirs))
        assert sum(map(len, wanted)) > 5
        for one, other in zip(found, wanted, strict=True):
            assert one.captions == other.captions and one.not_found == other.not_found
            np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-3)
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)


WIDE = [(192, 128), (128, 192), (256, 128)]


def odd_texts(count: int) -> list[str]:
    draw = random.Random(0)
    ranges = [(32, 127), (0, 32), (160, 592), (0x3040, 0x30FF), (0x1F300, 0x1F650), (0x300, 0x36F), (0x2000, 0x2070)]
    pieces = ["<s>", "</s>", "<loc_7>", "<loc_", "  ", "\n", "don't", "I'LL", "the dog", "1234.5", "<mask>", "<pad>"]
    return [
        "".join(
            draw.choice(pieces) if draw.random() < 0.3 else chr(draw.randrange(*draw.choice(ranges)))
            for _ in range(draw.randrange(25))
        )
        for _ in range(count)
    ]


def test_texts_are_cut_as_transformers_cuts_them(tmp_path: Path):
    """With merges, as the published tokenizer has them."""
    from tokenizers import ByteLevelBPETokenizer

    trained = ByteLevelBPETokenizer()
    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trained.train_from_iterator(["the dog, the red dogs and I'll don't 1234 in the sky"] * 9, 330, special_tokens=marks)
    model = json.loads(trained.to_str())["model"]
    tokenizer = transformers.BartTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    tokenizer.add_tokens([f"<loc_{number}>" for number in range(1000)])
    folder = copied(tmp_path)
    tokenizer.save_pretrained(folder)
    change(folder / "config.json", text_config={"vocab_size": len(tokenizer)})
    runner = saywhere.load(folder).adapter.runner
    for text in odd_texts(2_000):
        token_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert runner.token_ids(text) == token_ids, repr(text)
        assert runner.decode(token_ids) == tokenizer.decode(token_ids, skip_special_tokens=True), repr(text)
        assert runner.tokens(token_ids) == tokenizer.convert_ids_to_tokens(token_ids)


WITHOUT = """
import json, socket, sys
for name in ("torch", "transformers", "huggingface_hub", "onnx"):
    sys.modules[name] = None

def refuse(*_, **__):
    raise AssertionError("a connection was opened")

socket.socket = socket.create_connection = socket.getaddrinfo = refuse
import saywhere
from saywhere.adapters.florence2 import Florence2

Florence2.most_tokens = Florence2.caption_tokens = 8
model = saywhere.load(sys.argv[1])
print(json.dumps([str(model.caption(sys.argv[2])), model.describe(sys.argv[2]).to_dict()]))
"""


def test_neither_torch_nor_transformers_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    IMAGES[0].save(image := tmp_path / "a.png")
    command = [sys.executable, "-c", WITHOUT, str(tiny_graphs("florence2")), str(image)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    model = opened("florence2")
    monkeypatch.setattr(type(model.adapter), "most_tokens", 8)
    monkeypatch.setattr(type(model.adapter), "caption_tokens", 8)
    assert json.loads(done.stdout) == [str(model.caption(image)), model.describe(image).to_dict()]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2000])


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a graph is missing": (
        lambda folder: (folder / "onnx" / "encoder_model.onnx").unlink(),
        r"/onnx/encoder_model\.onnx is missing; there are decoder_model_merged\.onnx, embed_tokens\.onnx, vision",
    ),
    "a graph is cut off": (
        lambda folder: cut(folder / "onnx" / "vision_encoder.onnx"), r"/onnx/vision_encoder\.onnx cannot be loaded: ",
    ),
    "a graph is another": (
        lambda folder: shutil.copy(folder / "onnx" / "embed_tokens.onnx", folder / "onnx" / "encoder_model.onnx"),
        r"/onnx/encoder_model\.onnx: is another graph: it has no last_hidden_state$",
    ),
    "a tokenizer is cut off": (lambda folder: cut(folder / "tokenizer.json"), r"/tokenizer\.json: cannot be read: "),
    "the tokenizer of BERT": (
        lambda folder: shutil.copy(tiny_folder("grounding-dino") / "tokenizer.json", folder),
        r"/tokenizer\.json: is another model's: it has no token <s>$",
    ),
    "a tokenizer with more words": (
        lambda folder: change(folder / "config.json", text_config={"vocab_size": 900}),
        r"/tokenizer\.json: is another model's: it has 1262 tokens instead of 900$",
    ),
    "no preparation": (
        lambda folder: (folder / "preprocessor_config.json").unlink(),
        r"/preprocessor_config\.json cannot be read as JSON: ",
    ),
    "a preparation that is none": (
        lambda folder: (folder / "preprocessor_config.json").write_text("[]"),
        r"/preprocessor_config\.json must be a JSON object, not list$",
    ),
    "another preparation": (
        lambda folder: change(folder / "preprocessor_config.json", do_center_crop=True),
        r"/preprocessor_config\.json: its cropping or size is not supported; use the engine torch$",
    ),
    "a preparation without a size": (
        lambda folder: change(folder / "preprocessor_config.json", size=None), "config.json: cannot be understood: ",
    ),
    "a rule that is not supported": (
        lambda folder: change(folder / "generation_config.json", repetition_penalty=1.2),
        r"/generation_config\.json: repetition_penalty=1\.2 is not supported; use the engine torch$",
    ),
    "tokens that are no numbers": (
        lambda folder: change(folder / "generation_config.json", pad_token_id="one"), "json: cannot be understood: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_files_that_do_not_fit_are_one_line(damage: str, tmp_path: Path):
    make, message = DAMAGES[damage]
    make(folder := copied(tmp_path))
    refuses(f"^{folder}.*{message}", saywhere.load, folder)


def test_a_precision_is_a_suffix_of_the_graphs(tmp_path: Path):
    folder = copied(tmp_path)
    with pytest.raises(
        UserError, match=r"/onnx/vision_encoder_q4\.onnx is missing; there are decoder_model_merged\.on"
    ):
        saywhere.load(folder, precision="q4")
    with pytest.raises(UserError, match="^no precision 'int3'; graphs of the hub have float32, fp32, int8, fp16, q4, "):
        saywhere.load(folder, precision="int3")
    for path in list((folder / "onnx").iterdir()):
        shutil.copy(path, path.with_name(f"{path.stem}_quantized.onnx"))
    quantized, whole = saywhere.load(folder, precision="int8"), saywhere.load(folder, precision="fp32")
    assert quantized.caption(IMAGES[0]).sentence == whole.caption(IMAGES[0]).sentence
    assert quantized.digest() != whole.digest() == opened("florence2").digest()


@pytest.mark.parametrize("keep", [True, False])
def test_graphs_in_half_precision_answer_as_those_in_single(keep: bool, tmp_path: Path):
    """Those whose inputs are in single precision, and those that take halves."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    folder = copied(tmp_path)
    for path in list((folder / "onnx").iterdir()):
        half = convert_float_to_float16(onnx.load(path), keep_io_types=keep)
        onnx.save(half, path.with_name(f"{path.stem}_fp16.onnx"))
    half = saywhere.load(folder, precision="fp16").adapter.runner.write(IMAGES, PROMPTS, 4, 1)
    whole = opened("florence2").adapter.runner.write(IMAGES, PROMPTS, 4, 1)
    for (token_ids, log_probs), (wanted, others) in zip(half, whole, strict=True):
        assert token_ids == wanted
        np.testing.assert_allclose(log_probs, others, atol=0.05)


def test_texts_and_images_that_the_graphs_cannot_take_are_one_line():
    model = opened("florence2")
    for text in ("x" * 20_000, "caf\udce9"):
        refuses("cannot (take|process) this", model.ground, IMAGES[0], [text])


def test_of_weights_and_graphs_the_engine_chooses(tmp_path: Path):
    folder = copied(tmp_path)
    for engine in (None, "onnx"):
        assert getattr(find_adapted(folder, engine), "engine", None) == "onnx"
    with pytest.raises(UserError, match=f"^{folder}: has no weights in safetensors, the only format that is read$"):
        saywhere.load(folder, engine="torch")
    shutil.copy(tiny_folder("florence2") / "model.safetensors", folder)
    chosen = {device: getattr(find_adapted(folder, None, device), "engine", "") for device in ("cpu", "cuda")}
    assert chosen == {"cpu": "onnx", "cuda": "torch"}
    with pytest.raises(UserError, match="has no graph in its folder onnx: run it with the engine torch$"):
        saywhere.load(tiny_folder("florence2"), engine="onnx")


def test_openvino_answers_as_the_cpu(capsys: Any):
    if missing("openvino"):
        pytest.skip("onnxruntime-openvino takes the place of onnxruntime: see CONTRIBUTING.md")
    wanted, model = (saywhere.load(tiny_graphs("grounding-dino"), device) for device in ("cpu", "openvino"))
    images = [noise(128, 128, number) for number in range(2)]
    for one, other in zip(model.ground(images, ["a dog"] * 2), wanted.ground(images, ["a dog"] * 2), strict=True):
        np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)
    assert model.device == "openvino" and capsys.readouterr().err == ""
