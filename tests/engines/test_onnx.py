"""The engine without torch answers as the torch engine does, and refuses files that do not belong together."""

from __future__ import annotations

import json
import re
import shutil
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from photographs import noise, quarters
from refusals import refuses
from safetensors.numpy import load_file, save_file
from tiny_aligner import SENTENCES, VOCABULARY, tiny_aligner_config
from tiny_bundle import PARTS, exported_bundle, write_parts
from tiny_captioner import VOCABULARY as CAPTION_WORDS
from tiny_captioner import tiny_config as tiny_captioner_config

import saywhere
from saywhere import Model, UserError
from saywhere.configs.parts import SUMMARY, TOWER, TrunkConfig
from saywhere.engines import onnx
from saywhere.engines.arrays import pooling
from saywhere.engines.arrays.aligner import Aligner as ArrayAligner
from saywhere.engines.arrays.captioner import Captioner as ArrayCaptioner
from saywhere.engines.arrays.layers import Weights
from saywhere.engines.export import compare_engines, random_boxes
from saywhere.engines.torch import TorchEngine
from saywhere.models.aligner import embed_images, embed_texts
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.networks.vision.trunk import build_trunk

IMAGES = [noise(130, 90, 0), noise(33, 400, 1), quarters(97, 95), noise(20, 9, 4)]
"""Of odd shapes; their inputs are 96 x 64, 32 x 96 (the least side), 96 x 96 and 96 x 32."""


def both(folder: Path, **options: Any) -> tuple[Model, Model]:
    one, other = (saywhere.load(folder, "cpu", engine=engine, options=options) for engine in ("torch", "onnx"))
    return one, other


def close(one: Any, other: Any, atol: float = 1e-4) -> None:
    assert (one is None) == (other is None)
    if one is not None:
        np.testing.assert_allclose(one, other, atol=atol, rtol=1e-4)


def same_answers(one: Model, other: Model, parts: Sequence[str] = PARTS, count: int = 4) -> None:
    """All verbs that the models have with these parts, on images of several shapes."""
    assert one.parts == other.parts and one.long_side == other.long_side
    parts = [part for part in one.parts if part in parts]
    for number, image in enumerate(IMAGES[:count]):
        a, b = one.encode(image), other.encode(image)
        assert a.input_size == b.input_size
        if "densecap" in parts:
            same_regions(one.describe(a), other.describe(b))
            boxes = random_boxes(np.random.default_rng(number), 30, *image.size) if number else np.zeros((0, 4))
            boxes = boxes[(boxes[:, 2:] - boxes[:, :2] > 0).all(axis=1)]
            same_regions(one.describe(a, boxes), other.describe(b, boxes))
            scores = [model.score(e, ["a red square", "a zebra"]) for model, e in ((one, a), (other, b))]
            close(scores[0].log_probs, scores[1].log_probs, 1e-3)
        if "aligner" in parts:
            for beta in (0.0, 0.5):
                same_regions(*(m.align(e, SENTENCES[number], beta=beta).regions() for m, e in ((one, a), (other, b))))
            close(one.embed(a).vectors, other.embed(b).vectors)
            close(one.embed_text(SENTENCES[number]).vectors, other.embed_text(SENTENCES[number]).vectors)
        if "captioner" in parts:
            for beam_size in (1, 3):
                first, second = (m.caption(e, beam_size=beam_size) for m, e in ((one, a), (other, b)))
                assert first.sentence == second.sentence
                close(first.attention, second.attention)
                close(first.boxes, second.boxes, 0.05)


def same_regions(one: Any, other: Any) -> None:
    assert one.captions == other.captions
    close(one.boxes, other.boxes, 0.05)
    close(one.scores, other.scores)
    close(one.similarities, other.similarities)


# The same answers


def test_each_stage_computes_the_same():
    one, other = both(exported_bundle())
    assert compare_engines(one.engine, other.engine) < 1e-4


def test_the_model_answers_the_same():
    one, other = both(exported_bundle())
    same_answers(one, other)
    for model in (one, other):  # and that says something: no two images are answered alike
        assert len({r.captions for r in model.describe(IMAGES)}) == 4
        assert len({c.sentence for c in model.caption(IMAGES)}) > 2
        assert any(len(model.align(i, s, beta=0).phrases) > 1 for i, s in zip(IMAGES, SENTENCES, strict=True))


@pytest.mark.parametrize(
    "parts",
    [
        {"densecap": {"fc_size": 20, "pool_size": 3, "max_log_scale": None, "proposals": {"pre_nms_top_n": None}}},
        {"aligner": {"cell": "gru", "encoders": 2, "residual": True}},
        {"aligner": {"cell": "gru", "rectified": True, "signed_sqrt": False, "sentence_token": False}},
        {"aligner": {"cell": "gru", "regions": "whole", "levels": [8], "mean_over_words": False, "size_bonus": 1.0}},
        {"aligner": {"cell": "gru", "residual": True, "encoders": 2, "score_bonus": 0.2}},
        {"captioner": {"levels": [32]}},
        {"captioner": {"attend_to": "proposals"}},
        {"captioner": {"ngrams": {"count": 60, "words": 120, "size": 6, "weight": 50.0}}, "aligner": {}},
        {"captioner": {"grid": 5, "terms": ["word-state", "word-region", "region"]}},
    ],
    ids=str,
)
def test_models_of_other_options_answer_the_same(parts: dict[str, Any], tmp_path: Path):
    needed = {**parts, "densecap": parts.get("densecap", {})}  # the trunk has what proposals need
    same_answers(*both(write_parts(exported_bundle(), tmp_path / "model", needed)), list(parts), 2)


def test_the_last_encoder_alone_fits_as_well_as_the_others_do_beside_it(tmp_path: Path):
    options = {"cell": "gru", "encoders": 2, "hubs": 3}
    models = both(write_parts(exported_bundle(), tmp_path / "model", {"densecap": {}, "aligner": options}))
    first, last = list[Any](), list[Any]()
    for model in models:
        assert model.aligner is not None and model.aligner.last.hubness is None
        for found, aligner in ((first, model.aligner), (last, model.aligner.last)):
            image = embed_images(aligner, [model.encode(IMAGES[0])], plain=True)[0].vectors
            found.append((image, embed_texts(aligner, [SENTENCES[0]], plain=True)[0].vectors))
    for whole, part in zip(first, last, strict=True):
        size = whole[0].shape[1] // 2
        assert part[0].shape[1] == part[1].shape[1] == size
        before = whole[1][:, :size] @ whole[0][:, :size].T
        close(part[1] @ part[0].T, 2 * (whole[1] @ whole[0].T - before), 1e-3)
    for one, other in zip(*last, strict=True):
        close(one, other)


def test_other_options_of_use_change_both_engines_alike():
    options = {
        "densecap.proposals.post_nms_top_n": 7, "densecap.proposals.nms_iou": 0.3, "final_nms": 0.9, "repeat_nms": None,
        "densecap.decoding.beam_size": 3, "trunk.long_side": 160, "grid": 3, "captioner.decoding.max_words": 4,
        "beta": 0.0, "mean_over_words": False,
    }  # fmt: skip
    one, other = both(exported_bundle(), **options)
    same_answers(one, other)
    assert other.long_side == 160 and len(other.caption(IMAGES[0]).boxes) == 9  # pyright: ignore[reportArgumentType]
    plain = saywhere.load(exported_bundle())
    assert plain.describe(IMAGES[0]).to_dict() != other.describe(IMAGES[0]).to_dict()


@pytest.mark.parametrize(
    ("head", "branch", "tower"),
    [(True, False, ""), (True, True, ""), (False, True, ""), (True, True, "tower"), (True, False, "tower")],
)
@torch.no_grad()
def test_the_last_layer_and_a_second_branch_or_a_tower_are_averaged_too(head: bool, branch: bool, tower: str):
    """Their backbones are too large to be exported in a test: maps are drawn instead."""
    torch.manual_seed(0)
    settings = TrunkConfig(
        backbone="efficientnet_lite0", strides=(16, 32), branch=branch and not tower, tower=bool(tower)
    )
    trunk = build_trunk(settings, None, head=head, pretrained=False).eval()
    options = {"trunk": settings.to_dict(), "levels": [32], "head": head, "branch": branch}
    network = Aligner(tiny_aligner_config(regions="whole", **options), VOCABULARY, trunk).eval()
    more = 0 if not branch else 1280 + 512 if tower else 128 + 1280
    size = trunk.backbone.channels[1] + 1280 * head + more + 5
    network.standardise.running_mean.normal_(generator=torch.Generator().manual_seed(1))
    assert network.standardise.num_features == size
    maps = [torch.randn(c, 10 // s, 12 // s) for c, s in zip(trunk.backbone.channels, (1, 2), strict=True)]
    seen = (torch.randn(1280, 14, 14), torch.randn(512, 1, 1)) if tower else ()
    image = ImageMaps(trunk, [*maps, *seen], 192, 160)
    outputs = {"map16": maps[0], "map32": maps[1], **({"head": image.head} if head else {})}
    outputs |= (
        {TOWER: seen[0], SUMMARY: seen[1].flatten()} if seen else {f"branch{stride}": m for m, stride in image.branch}
    )
    arrays = pooling.ImageMaps({k: v[None].numpy() for k, v in outputs.items()}, (16, 32), (192, 160))
    weights = Weights.of({name: value.numpy() for name, value in network.state_dict().items()})
    aligner = ArrayAligner(network.config, VOCABULARY, weights)
    boxes = np.concatenate(([[0, 0, 192, 160]], random_boxes(np.random.default_rng(0), 20, 192, 160)))
    boxes = boxes.astype(np.float32)  # the whole image has the tower's embedding of it
    engine = TorchEngine({"aligner": network})
    (expected,) = engine.aligner.region_vectors([image], [boxes])
    (found,) = aligner.region_vectors([arrays], [boxes])
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for regions, rows in (("grid", None), ("proposals", boxes)):
        proposals = {"anchors": [[[20, 20]], [[40, 40]]]}
        caption = tiny_captioner_config(grid=3, proposals=proposals, **options)
        captioner = Captioner(caption, CAPTION_WORDS, trunk).eval()
        captioner.config = caption = replace(caption, attend_to=regions)  # this trunk proposes nothing
        assert captioner.feature_size == size
        weights = Weights.of({name: value.numpy() for name, value in captioner.state_dict().items()})
        theirs = TorchEngine({"captioner": captioner}).captioner
        given, ours = theirs.bind_images([image], [rows]), ArrayCaptioner(caption, CAPTION_WORDS, weights)
        own = ours.bind_images([arrays], [rows])
        np.testing.assert_allclose(own.embeddings, np.asarray(given.embeddings), atol=1e-4)
        words = np.array([[4, 5, 6]])
        for one, other in zip(own.attention(words), given.attention(words), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
    moves = tiny_captioner_config(grid=3, **options | {"levels": [16]}, attend_to="transformer")
    moved = Captioner(moves, CAPTION_WORDS, trunk).eval().attend([image])
    corners = moved.regions[0].corners
    assert moved.features.shape[:2] == (1, 9) and corners is not None
    assert corners.mean(dim=1).amax(dim=0).tolist() == [4.5 * 32, 3.5 * 32]  # in cells of the coarsest map
    boxer = Captioner(
        tiny_captioner_config(**options, decoder="rnn", attend_to="whole", describe_boxes=True), CAPTION_WORDS, trunk
    )
    assert boxer.embed(image, torch.from_numpy(boxes)).shape == (21, size)


def test_the_digest_follows_weights_and_options(folder: Path):
    digest = saywhere.load(exported_bundle()).digest()
    assert saywhere.load(folder).digest() == digest == saywhere.load(folder, threads=1).digest()
    assert saywhere.load(folder, options={"beta": 3}).digest() != digest
    change_weight(folder, "aligner.log_scale")
    assert saywhere.load(folder).digest() != digest


# Files that do not belong together


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported_bundle(), tmp_path / "model"))


def change_weight(folder: Path, name: str) -> None:
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights[name] = np.asarray(weights[name] + np.ones((), weights[name].dtype))
    save_file(weights, path)


def rewrite(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


def refused(folder: Path, **options: Any) -> str:
    """The one line that is said instead of an answer, at loading or at the first image."""
    said = refuses("", lambda: saywhere.load(folder, engine="onnx", options=options).describe(IMAGES[0]))
    assert said.isprintable()
    return said


def put(name: str, content: bytes | Callable[[bytes], bytes]) -> Callable[[Path], object]:
    """Write other bytes into a file, or what is made of its own."""
    return lambda folder: (folder / name).write_bytes(
        content if isinstance(content, bytes) else content((folder / name).read_bytes())
    )


OTHER = "{0}/trunk.onnx does not belong to model.safetensors or trunk.json beside it: export the model again"
DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "trunk.onnx").unlink(),
     "{0} has no trunk.onnx: make it with saywhere export, or use the engine torch"),
    (lambda folder: (folder / "trunk.json").unlink(), "{0}/trunk.json cannot be read as JSON: "),
    *((put("trunk.onnx", content), OTHER) for content in (b"", b"no graph", lambda graph: graph + b"\0")),
    (lambda folder: change_weight(folder, "trunk.localization.head.conv.bias"), OTHER),
    (lambda folder: rewrite(folder, "trunk.json", lambda info: info["weights"].popitem()),
     "{0}/trunk.onnx cannot be loaded: "),
    (lambda folder: rewrite(folder, "trunk.json", lambda i: next(iter(i["weights"].values())).update(layer="nothing")),
     "the model's weights lack trunk.nothing.weight"),
    *((put("model.safetensors", content), "{0}/model.safetensors cannot be read: ")
      for content in (b"", b"no weights", lambda weights: weights[:-100])),
    (lambda folder: rewrite(folder, "vocabulary.json", lambda words: words["captioner"]["counts"].update(zebra=1)),
     "{0}: the weights of the part captioner do not fit its vocabulary: "),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_files_that_do_not_belong_together_are_refused(
    folder: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(folder)
    said, start = refused(folder), message.format(folder)
    assert said.startswith(start) or (said.endswith(start) and "lack" in start)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"embed_dim": 48}, "embed_dim is an option of several parts"),
        ({"densecap.embed_dim": 48}, "the weights of the part densecap do not fit its options: "),
        ({"cell": "relu"}, "cell=relu needs the engine torch"),
        ({"captioner.terms": ["word"]}, "the weights of the part captioner have, against its options, "),
        ({"captioner.ngrams.count": 4, "captioner.ngrams.words": 9}, "the weights of the part captioner lack "),
        ({"captioner.ngrams.weight": 1e9}, "ngrams.weight is 1000000000.0, but must be between 0 and 1000.0"),
        ({"attend_to": "transformer"}, "attend_to=transformer needs the engine torch"),
        ({"trunk.multiple": 16}, "trunk.multiple=16 (no multiple of 32) needs the engine torch"),
        ({"trunk.backbone": "test_resnet"}, "trunk.onnx is the graph of another trunk.backbone, which cannot be chang"),
        ({"densecap.proposals.anchors": [[[9, 9]] * 6] * 3}, "share a trunk but differ in proposals.anchors"),
    ],
)
def test_options_that_do_not_fit_are_refused_when_it_is_loaded(options: dict[str, Any], message: str):
    said = refuses("", saywhere.load, exported_bundle(), engine="onnx", options=options)
    assert message in said and said.isprintable()


def test_anchors_may_be_others_for_all_parts_but_not_more():
    parts = ("densecap", "aligner")
    shapes = [[[20.0, 30.0]] * 6] * 3
    same_answers(*both(exported_bundle(), **{f"{part}.proposals.anchors": shapes for part in parts}), parts, 1)
    model = saywhere.load(exported_bundle(), options={f"{p}.proposals.anchors": [[[20, 30]]] * 3 for p in parts})
    refuses(r"proposals\.anchors has other numbers of shapes than when trunk\.onnx was made", model.describe, IMAGES[0])


def test_features_of_other_levels_are_refused_when_they_are_made():
    model = saywhere.load(exported_bundle(), engine="onnx", options={"aligner.levels": [8], "captioner.levels": [32]})
    for call, size in ((model.embed, 37), (model.caption, 69)):
        refuses(f"^the weights take 117 features of a region, and the options give {size}: le", call, IMAGES[0])


def test_what_a_graph_does_not_compute_is_named():
    """A trunk without a localization layer, asked for proposals."""
    maps = pooling.ImageMaps({"map16": np.zeros((1, 4, 2, 2), np.float32)}, (16,), (32, 32))
    refuses("^the model's graph has no logits: an option is not what it was when", maps.output, "logits")
    refuses("has no map32", maps.sources, [32], False)
    refuses("has no head", maps.sources, [16], True)
    with pytest.raises(UserError, match="has no region16"):
        assert maps.regions


# The runtime


def test_a_missing_or_broken_runtime_is_one_line(monkeypatch: pytest.MonkeyPatch):
    exported_bundle()  # is made by it
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert refused(exported_bundle()).startswith("ONNX Runtime cannot be imported (import of onnxruntime halted; ")
    assert refused(exported_bundle()).endswith("): pip install onnxruntime")
    monkeypatch.setitem(sys.modules, "onnxruntime", types.ModuleType("onnxruntime"))
    assert refused(exported_bundle()).startswith(
        "ONNX Runtime is installed in part, as after removing one of onnxrunti"
    )

    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "onnxruntime":
                raise ImportError("DLL load failed\nwhile importing it")

    monkeypatch.delitem(sys.modules, "onnxruntime")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert refused(exported_bundle()).startswith(
        "ONNX Runtime cannot be imported (DLL load failed while importing it): "
    )


def register(monkeypatch: pytest.MonkeyPatch, device: str, loads: bool = True, error: float = 0.0) -> None:
    """Let ONNX Runtime have the provider of one more device, which computes on the CPU, with an error if it is given.

    If it does not load, ONNX Runtime goes on with the CPU.
    """
    import onnxruntime

    cpu, name = "CPUExecutionProvider", onnx.DEVICES[device].name

    class Session(onnxruntime.InferenceSession):
        def __init__(self, graph: Any, options: Any, providers: list[str]) -> None:
            super().__init__(graph, options, providers=[cpu])
            self.provider = providers[0] if loads else cpu

        def get_providers(self) -> list[str]:
            return [self.provider, cpu]

        def run(self, *arguments: Any) -> Any:
            factor = 1 if self.provider == cpu else 1 + error
            return [np.asarray(each * factor, each.dtype) for each in super().run(*arguments)]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [name, cpu])


@pytest.mark.parametrize("device", [device for device in onnx.DEVICES if device != "cpu"])
def test_a_device_is_compared_with_the_cpu_once(device: str, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    wanted = saywhere.load(exported_bundle()).describe(IMAGES[0])
    register(monkeypatch, device)
    model = saywhere.load(exported_bundle(), device, engine="onnx")
    assert model.device == device and model.describe(IMAGES[0]).to_dict() == wanted.to_dict()
    assert capsys.readouterr().err == ""
    register(monkeypatch, device, error=0.25)
    model = saywhere.load(exported_bundle()).to(device)
    model.describe(IMAGES[:2])
    path = exported_bundle() / "trunk.onnx"
    assert capsys.readouterr().err == (
        f"{path}: on the device {device} answers differ from the CPU's by 0.25 of their largest value\n"
    )
    if device != "cuda":  # no engine need be named
        assert saywhere.load(exported_bundle(), device).device == device


@pytest.mark.parametrize("device", [device for device in onnx.DEVICES if device != "cpu"])
def test_a_device_that_cannot_be_used_is_one_line_and_never_the_cpu(device: str, monkeypatch: pytest.MonkeyPatch):
    name, package = onnx.DEVICES[device]
    message = f"this ONNX Runtime has no {name}: pip uninstall onnxruntime, then pip install {package}"
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    assert onnx.missing(device) == message and onnx.missing("cpu") == ""
    for load in (
        lambda: saywhere.load(exported_bundle(), device, engine="onnx"),
        lambda: saywhere.load(exported_bundle()).to(device),
    ):
        refuses(f"^device {device}: {message}; or leave it out, for the CPU, or ", load)
    register(monkeypatch, device, loads=False)
    model = saywhere.load(exported_bundle(), device, engine="onnx")
    refuses(f"^device {device}: {name} of ONNX Runtime cannot be loaded, such as for want", model.encode, IMAGES[0])


@pytest.mark.parametrize(
    ("answer", "share"), [((-np.inf, 2), ""), ((-np.inf, 1), "0.5"), ((1, 2), "inf"), ((np.nan, 2), "nan")]
)
def test_infinities_are_compared_too(
    answer: tuple[float, float], share: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
):
    """As the logits of Grounding DINO have them for tokens that a text lacks."""
    name = onnx.DEVICES["openvino"].name
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [name])

    def load(provider: str) -> Any:
        values = np.array(answer if provider == name else (-np.inf, 2), np.float32)
        metadata = types.SimpleNamespace(custom_metadata_map={})
        return types.SimpleNamespace(
            get_providers=lambda: [provider], disable_fallback=lambda: None, get_inputs=list, get_outputs=list,
            get_modelmeta=lambda: metadata, run=lambda *_: [values],
        )  # fmt: skip

    onnx.Session(Path("a.onnx"), load, "openvino").run({}, ["logits"])
    assert re.findall(r"CPU's by (\S+) of", capsys.readouterr().err) == ([share] if share else [])


def test_openvino_answers_as_the_cpu(capsys: Any):
    if onnx.missing("openvino"):
        pytest.skip("onnxruntime-openvino takes the place of onnxruntime: see CONTRIBUTING.md")
    wanted, model = saywhere.load(threads=1), saywhere.load(device="openvino")
    for image in IMAGES[:2]:
        one, other = model.describe(image), wanted.describe(image)
        assert one.captions == other.captions and model.caption(image).sentence == wanted.caption(image).sentence
        np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
    assert model.device == "openvino" and capsys.readouterr().err == ""
