"""Export of models for use without torch: the trunk as a graph, verified stage by stage against the networks."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.calibration import FILE as CALIBRATION
from saywhere.configs.nouns import NounsConfig
from saywhere.configs.parts import BRANCH_STRIDES, RegionConfig
from saywhere.engines.arrays.layers import Weights
from saywhere.engines.engine import Decoder, Engine
from saywhere.engines.onnx import MULTIPLE, NEEDS_TORCH, OnnxEngine, refused_options, weights_digest
from saywhere.engines.quantize import quantize
from saywhere.engines.torch import TorchEngine
from saywhere.errors import UserError
from saywhere.files import explain_full_disk, printable, put_in_place, short_name
from saywhere.images import open_image
from saywhere.models.bundle import (
    CARD,
    CONFIG,
    FILES,
    GRAPH,
    GRAPH_INT8,
    GRAPH_TOWER,
    GRAPH_WEIGHTS,
    INFORMATION,
    OPTIONAL,
    VOCABULARY,
    WEIGHTS,
    Bundle,
    GraphInfo,
    GraphWeight,
    find_folder,
)
from saywhere.networks import checkpoint
from saywhere.networks.vision.trunk import Trunk
from saywhere.report import counted
from saywhere.text import END, START

EXAMPLE = (1, 3, 288, 384)
TRUNK = "trunk."


def export(
    folders: Sequence[str | Path],
    out: str | Path,
    description: str = "",
    int8: Sequence[Path] | None = None,
    replace: bool = False,
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Write one model from training checkpoints, with half-precision weights and a graph for the engine onnx.

    Both engines are compared on several images before anything is written to ``out``.

    Args:
        folders: models with different parts on the same trunk.
        out: folder of the new model; its files are replaced.
        description: one line. Default: the parts' descriptions joined.
        int8: training images for :func:`saywhere.engines.quantize.quantize`, to also make an int8 graph.
        replace: see :func:`saywhere.networks.checkpoint.merge`.
        options: changes to the parts' options, by dotted name.

    Raises:
        UserError: ``out`` contains other files or is one of ``folders``; a folder is not a model; two have the same
            part; their trunks differ; a part needs the engine torch; the engines differ; or a package is missing.
    """
    out = Path(out)
    require_exportable(folders)
    _require_free(out, folders)
    out.parent.mkdir(parents=True, exist_ok=True)
    prefix = f"{checkpoint.SAVING}{short_name(out.name)}-"
    for left_over in out.parent.glob(f"{prefix}*"):  # from killed runs
        shutil.rmtree(left_over, ignore_errors=True)
    with explain_full_disk(out), tempfile.TemporaryDirectory(dir=out.parent, prefix=prefix) as temporary:
        merged, new = Path(temporary) / "merged", Path(temporary) / "new"
        checkpoint.merge(folders, merged, description, replace=replace)
        parts = Bundle.read(merged).configs.items()  # the folder of a localizer means nothing elsewhere
        own = {f"{part}.localizer": RegionConfig.localizer for part, each in parts if isinstance(each, RegionConfig)}
        for changes in (own, options or {}):
            checkpoint.change_options(merged, changes)
        bundle = Bundle.read(merged)
        text = _card(folders) or f"# {out.name}\n\n{bundle.description}\n"
        checkpoint.save(
            checkpoint.load_networks(merged), new, text, bundle.description, torch.float16, bundle.calibration
        )
        networks = checkpoint.load_networks(new)  # with rounded weights
        write_graph(next(iter(networks.values())).get_submodule("trunk"), new)
        compare_engines(TorchEngine(networks, bundle.calibration), OnnxEngine(Bundle.read(new)))
        if int8 is not None:
            quantize(new, int8)
        having = [folder for folder in map(find_folder, folders) if "densecap" in Bundle.read(folder).configs]
        if having and (having[-1] / INFORMATION).is_file():  # the last part densecap is the one that is exported
            shutil.copy(having[-1] / INFORMATION, new)
        names = [name for name in (*OPTIONAL, VOCABULARY, WEIGHTS, CONFIG) if (new / name).is_file()]
        out.mkdir(exist_ok=True)
        # Old ones would belong to another model, even after a kill.
        for name in (CONFIG, GRAPH_INT8, CALIBRATION, INFORMATION):
            (out / name).unlink(missing_ok=True)
        for name in names:
            put_in_place(new / name, out / name)
    return out


def _require_free(out: Path, folders: Sequence[str | Path]) -> None:
    """Refuse a folder whose files are not from an earlier export."""
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out} is no folder: name another with --out")
    if any(out.samefile(find_folder(folder)) for folder in folders):
        raise UserError(f"{out} is the model that is exported: name another folder with --out")
    others = sorted(path.name for path in out.iterdir() if path.name not in (*FILES, *OPTIONAL))
    if others and not (out / WEIGHTS).is_file():
        raise UserError(
            f"{out} has {printable(others[0])}, which does not belong to a model: name another folder with --out"
        )
    made = {part for folder in folders for part in Bundle.read(folder).configs}
    try:
        lost = [part for part in Bundle.read(out).configs if part not in made]
    except UserError:  # no model, or that of an export that was stopped
        lost = []
    if lost:
        raise UserError(
            f"{out} is a model with the part {lost[0]}, which the new one would not have: name another folder with "
            "--out, or remove it first"
        )


def _card(folders: Sequence[str | Path]) -> str:
    """Return the model card of a single checkpoint; empty if it has none, or there are several."""
    path = find_folder(folders[0]) / CARD
    return path.read_text(encoding="utf-8") if len(folders) == 1 and path.is_file() else ""


def require_exportable(folders: Sequence[str | Path]) -> None:
    """Raise ``UserError`` for models that need the engine torch; the message names the option."""
    bundles = [Bundle.read(folder) for folder in folders]
    for folder, bundle in zip(folders, bundles, strict=True):
        refused = refused_options(bundle.trunk, bundle.configs)
        if refused:
            raise UserError(f"{folder}: {refused[0]} {NEEDS_TORCH}; it cannot be exported")
        if bundle.trunk.tower and not any((other.folder / GRAPH_TOWER).is_file() for other in bundles):
            raise UserError(f"{folders[0]} has no {GRAPH_TOWER}, the image tower that {folder} looks with")
        nouns = bundle.configs.get("nouns")
        embeds = isinstance(nouns, NounsConfig) and nouns.embed_dim
        sizes = [getattr(other.configs.get("densecap"), "embed_dim", 0) for other in bundles]
        if embeds and embeds not in sizes:
            raise UserError(f"{folder}: classes read {embeds} numbers of densecap's embeddings: name its model too")


class _Graph(nn.Module):
    """A trunk as a function of pixels, with named outputs."""

    def __init__(self, trunk: Trunk) -> None:
        super().__init__()
        self.trunk = trunk
        strides = trunk.backbone.strides
        self.names = [f"map{stride}" for stride in strides]
        self.names += ["head"] if trunk.head is not None else []
        self.names += [f"branch{stride}" for stride in BRANCH_STRIDES] if trunk.branch is not None else []
        if trunk.localization is not None:
            self.names += [*(f"region{stride}" for stride in strides), "logits", "offsets"]

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """Map pixels ``(1, 3, H, W)`` to the outputs ``names``, each with a batch dimension."""
        trunk, strides = self.trunk, self.trunk.backbone.strides
        maps = tuple(trunk.backbone.body(pixels))
        outputs = list(maps)
        if trunk.head is not None:
            outputs.append(trunk.head(maps[-1][0])[None])
        if trunk.branch is not None:
            outputs += [features[None] for features in trunk.branch(maps[strides.index(BRANCH_STRIDES[0])][0])]
        if trunk.localization is not None:
            regions = maps if trunk.pyramid is None else trunk.pyramid(*maps)
            outputs += [*(region.clone() for region in regions), *trunk.localization.head(*regions)]
        return tuple(outputs)


def write_graph(trunk: nn.Module, folder: Path) -> None:
    """Write ``trunk.onnx`` and ``trunk.json`` beside a model's weights; ``UserError`` if the trunk has no graph."""
    assert isinstance(trunk, Trunk)
    graph = _Graph(copy.deepcopy(trunk)).eval()
    sources = _fold(graph)
    model = _to_onnx(graph)
    taken: dict[str, GraphWeight] = {}
    for initializer in model.graph.initializer:
        name = initializer.name
        if name.startswith(TRUNK) and name in sources:
            taken[name] = sources[name]
            _empty(initializer)
    model.producer_name, model.doc_string = "saywhere", ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]  # torch's own notes, whose order changes from run to run
    data = model.SerializeToString()
    (folder / GRAPH).write_bytes(data)
    digest = weights_digest(Weights.open(folder / WEIGHTS).below("trunk"))
    info = GraphInfo(hashlib.sha256(data).hexdigest(), digest, taken)
    (folder / GRAPH_WEIGHTS).write_text(json.dumps(asdict(info), indent=1) + "\n", encoding="utf-8")


def _fold(graph: _Graph) -> dict[str, GraphWeight]:
    """Fold batch normalisation into preceding convolutions, make padding constant, and return the weights' sources."""
    modules = dict(graph.named_modules())
    sources = {
        name: GraphWeight(name.rpartition(".")[0].removeprefix(TRUNK), name.rpartition(".")[2])
        for name, _ in graph.named_parameters()
    }
    for layer, normalisation in _pairs(graph).items():
        conv, norm = modules[layer], modules[normalisation]
        assert isinstance(conv, nn.Conv2d) and isinstance(norm, nn.modules.batchnorm._BatchNorm)
        mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
        weight, bias = nn.utils.fuse_conv_bn_weights(
            conv.weight, conv.bias, mean, variance, norm.eps, norm.weight, norm.bias
        )
        conv.weight, conv.bias = nn.Parameter(weight), nn.Parameter(bias)
        parent, _, leaf = normalisation.rpartition(".")
        setattr(modules[parent], leaf, getattr(norm, "act", nn.Identity()))
        names = layer.removeprefix(TRUNK), normalisation.removeprefix(TRUNK)
        for kind in ("weight", "bias"):
            sources[f"{layer}.{kind}"] = GraphWeight(names[0], kind, names[1], norm.eps)
    for module in modules.values():
        if isinstance(module, nn.Conv2d) and type(module).__name__ == "Conv2dSame":  # timm's, with TensorFlow's padding
            vars(module)["forward"] = partial(_padded_convolution, module)
        if getattr(module, "inplace", False):  # the same graph, but the exporter takes twice as long to decompose these
            vars(module)["inplace"] = False
    return sources


def _pairs(graph: nn.Module) -> dict[str, str]:
    """Return the batch normalisation after each convolution, by the convolution's name."""
    names = {module: name for name, module in graph.named_modules()}
    made: dict[int, tuple[nn.Module, Any]] = {}
    pairs: dict[str, str] = {}

    def convolved(module: nn.Module, _: Any, output: Tensor) -> None:
        made[id(output)] = module, output  # keeps the output alive, so that its id stays unique

    def normalised(module: nn.Module, inputs: tuple[Tensor, ...], _: Any) -> None:
        if id(inputs[0]) in made:
            pairs[names[made[id(inputs[0])][0]]] = names[module]

    hooks: list[Callable[[], None]] = []
    for module in graph.modules():
        if isinstance(module, nn.Conv2d):
            hooks.append(module.register_forward_hook(convolved).remove)
        elif isinstance(module, nn.modules.batchnorm._BatchNorm):
            hooks.append(module.register_forward_hook(normalised).remove)
    with torch.no_grad():
        graph(torch.zeros(EXAMPLE))
    for remove in hooks:
        remove()
    return pairs


def _padded_convolution(conv: nn.Conv2d, features: Tensor) -> Tensor:
    """Convolve with TensorFlow's padding for inputs whose sides are multiples of the stride."""
    pads: list[int] = []
    for size, stride in zip(conv.kernel_size[::-1], conv.stride[::-1], strict=True):
        total = max(size - stride, 0)
        pads += [total // 2, total - total // 2]
    padded = nn.functional.pad(features, pads)
    return nn.functional.conv2d(padded, conv.weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups)


def _to_onnx(graph: _Graph) -> Any:
    """Return the graph as an ONNX model for inputs of any size."""
    names = {2: "rows", 3: "columns"}
    sides = {axis: MULTIPLE * torch.export.Dim(name, min=1, max=256) for axis, name in names.items()}
    try:
        program = torch.onnx.export(
            graph, (torch.zeros(EXAMPLE),), dynamo=True, input_names=["pixels"], output_names=graph.names,
            dynamic_shapes=(sides,), external_data=False, verbose=False,
        )  # fmt: skip
    except ImportError as error:
        raise UserError(f"writing a graph needs {error.name}: pip install 'saywhere[torch]'") from error
    except Exception as error:  # the exporter raises many classes of its own
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"the backbone cannot be written as a graph, so it needs the engine torch: {reason}") from error
    assert program is not None
    return program.model_proto


def _empty(initializer: Any) -> None:
    """Remove the values of a weight from the graph; the runtime gets them when it opens the graph."""
    length = int(np.prod(initializer.dims)) * 4
    for field in ("raw_data", "float_data"):
        initializer.ClearField(field)
    initializer.data_location = 1  # external
    del initializer.external_data[:]
    for key, value in (("location", WEIGHTS), ("offset", "0"), ("length", str(length))):
        entry = initializer.external_data.add()
        entry.key, entry.value = key, value


SHAPES = ((300, 400), (400, 300), (60, 400), (401, 399))
"""Heights and widths of the images for comparing engines."""
TOLERANCE = 1e-3
"""Maximum difference between two engines, relative to the largest value of a stage."""


def compare_engines(one: Engine, other: Engine) -> float:
    """Return the maximum difference between two engines over all stages, relative to a stage's largest value.

    ``UserError``, naming the stage, if a stage differs by more than :data:`TOLERANCE`.
    """
    worst = 0.0
    for (stage, ours), (_, theirs) in zip(stages(one), stages(other), strict=True):
        largest = max(float(np.abs(ours).max(initial=0)), 1e-6)
        difference = float(np.abs(ours - theirs).max(initial=0)) / largest
        if not difference <= TOLERANCE:
            raise UserError(f"the engines differ in {stage} by {difference:.2g} of its largest value")
        worst = max(worst, difference)
    return worst


Stages = Iterator[tuple[str, np.ndarray]]


def stages(engine: Engine) -> Stages:
    """Yield the results of an engine for a few smooth random images, by stage.

    Neighbouring pixels are similar, as in photographs. Boxes are random; their number includes 0 and 1,000.
    """
    random = np.random.default_rng(0)
    for height, width in SHAPES:
        noise = random.integers(0, 255, (height // 20 + 2, width // 20 + 2, 3), dtype=np.uint8)
        image = open_image(np.kron(noise, np.ones((20, 20, 1), np.uint8))[:height, :width])
        pixels = engine.trunk.preprocess(image)
        maps = engine.trunk.encode([pixels])
        boxes = [random_boxes(random, count, pixels.shape[2], pixels.shape[1]) for count in (0, 1, 1000)]
        for part in (_densecap, _aligner, _nouns, partial(_captioner, random)):
            yield from part(engine, maps, boxes, f"an image of {width} x {height}")
    if engine.aligner is not None:
        token_ids = random.integers(4, len(engine.aligner.vocabulary), (4, 7))
        token_ids[1, 3:], token_ids[2, :] = 0, END
        yield "vectors of words", engine.aligner.text_vectors(token_ids).vectors


def _densecap(engine: Engine, maps: Sequence[Any], boxes: Sequence[np.ndarray], where: str) -> Stages:
    if engine.densecap is None:
        return
    rpn = engine.trunk.propose(maps[0])
    for name in ("anchors", "logits", "offsets"):
        yield f"{name} of anchors of {where}", getattr(rpn, name)
    for rows in boxes:
        (head,) = engine.densecap.region_head(maps, [rows])
        for name in ("embeddings", "logits", "offsets"):
            yield f"{name} of {counted(len(rows), 'region')} of {where}", getattr(head, name)
    some = [boxes[2][:20]]
    (head,) = engine.densecap.region_head(maps, some)
    features = engine.densecap.phrase_features(maps, some, [head.embeddings])
    (codes,) = engine.densecap.phrase_embeddings(features)
    yield "the region decoder", _first_words(engine.densecap.decoder, codes)
    if engine.densecap.ngrams is not None:
        yield "n-grams of phrases", engine.densecap.ngrams.probabilities(features[0])


def _aligner(engine: Engine, maps: Sequence[Any], boxes: Sequence[np.ndarray], where: str) -> Stages:
    if engine.aligner is None:
        return
    for rows in boxes:
        (vectors,) = engine.aligner.region_vectors(maps, [rows])
        yield f"vectors of {counted(len(rows), 'region')} of {where}", vectors


def _nouns(engine: Engine, maps: Sequence[Any], boxes: Sequence[np.ndarray], where: str) -> Stages:
    if engine.nouns is None:
        return
    for rows in boxes:
        heads = [] if engine.densecap is None else engine.densecap.region_head(maps, [rows])
        embeddings = [head.embeddings for head in heads] if engine.nouns.config.embed_dim else None
        found = engine.nouns.classify(maps, [rows], embeddings)[0]
        for name, logits in zip(("classes", "kinds"), found, strict=True):
            yield f"{name} of {counted(len(rows), 'region')} of {where}", logits


def _captioner(
    random: np.random.Generator, engine: Engine, maps: Sequence[Any], boxes: Sequence[np.ndarray], where: str
) -> Stages:
    if engine.captioner is None:
        return
    given = boxes[2][:50] if engine.captioner.config.attend_to == "proposals" else None
    bound = engine.captioner.bind_images(maps, [given])
    yield f"the caption decoder on {where}", _first_words(bound.decoder, bound.embeddings)
    if bound.attention is not None:
        token_ids = random.integers(4, len(engine.captioner.vocabulary), (1, 5))
        yield f"attention on {where}", bound.attention(token_ids)


def _first_words(decoder: Decoder, embeddings: np.ndarray) -> np.ndarray:
    """Return log-probabilities of the first and second word."""
    state = decoder.start(embeddings)
    tokens = np.full(len(embeddings), START)
    first, state = decoder.step(tokens, state)
    second, _ = decoder.step(tokens + END, state)
    return np.concatenate((first, second))


def random_boxes(random: np.random.Generator, count: int, width: float, height: float) -> np.ndarray:
    """Return random boxes ``(count, 4)`` of all sizes in an image."""
    corners = np.sort(random.uniform(0, 1, (count, 2, 2)), axis=1).reshape(count, 4)
    return (corners * np.array([width, height, width, height])).astype(np.float32)
