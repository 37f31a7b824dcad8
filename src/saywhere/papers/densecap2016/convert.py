"""The published program's files: its Torch7 checkpoints made model folders, and our regions made its results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.configs.densecap import DenseCapConfig
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.formats.registry import read_lines
from saywhere.images import open_image, resized, save_image
from saywhere.inference.results import Outputs
from saywhere.inference.sources import find_images, out_path
from saywhere.networks import checkpoint
from saywhere.networks.densecap.network import DenseCap
from saywhere.options import dataclass
from saywhere.papers.densecap2016.conventions import field_center, ours_to_corners, scaled_size, x1y1x2y2_to_xywh
from saywhere.papers.densecap2016.network import VGG16_DEPTHS
from saywhere.regions import Regions
from saywhere.report import Report
from saywhere.text import Vocabulary

STRIDE = 16
UNKNOWN = "<UNK>"
NEVER = -1e4
"""Bias of an unknown word missing from the program's vocabulary: decoding never chooses it."""

# The location of each DenseCap weight in the program's checkpoints. Locations are written as in Lua, starting from the
# model's ``nets``, such as ``conv_net1.modules[1].weight``, and count from 1.

CONVOLUTIONS = (0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28)
"""Layers of ``vgg16_caffe``; those after the second pooling are the program's second network."""
FIRST_NETWORK = 10

RPN = "localization_layer.nets.rpn"
DECODER = "language_model"

MODULES = {
    **{
        f"trunk.backbone.body.{i}": f"conv_net1.modules[{i + 1}]"
        if i < FIRST_NETWORK
        else f"conv_net2.modules[{i + 1 - FIRST_NETWORK}]"
        for i in CONVOLUTIONS
    },
    "trunk.localization.head.conv": f"{RPN}.modules[1]",
    "trunk.localization.head.offset": f"{RPN}.modules[3].modules[1].modules[1]",
    "trunk.localization.head.score": f"{RPN}.modules[3].modules[2].modules[1]",
    "region_head.layers.1": "recog_base.modules[2]",
    "region_head.layers.4": "recog_base.modules[5]",
    "region_head.score": "objectness_branch",
    "region_head.offset": "box_reg_branch",
    "decoder.model.encode": f"{DECODER}.image_encoder.modules[1]",
    "decoder.model.output": f"{DECODER}.rnn.modules[3]",
}
"""Our modules with a weight and a bias of the same layout, and the program's."""
WORDS = ("decoder.model.words.weight", f"{DECODER}.lookup_table.weight")
LSTM = ("decoder.model.lstm", f"{DECODER}.rnn.modules[1]")


@dataclass(frozen=True)
class Torch7Checkpoint:
    """A file of the program: ``model`` and ``opt`` of ``{model, opt, iter, ...}``, and its size in bytes."""

    path: Path
    root: Any
    size: int

    def at(self, place: str) -> Any:
        """Return the value at a location such as ``model.nets.conv_net1.modules[1]``; ``UserError`` if none."""
        node = self.root
        for name, number in re.findall(r"(\w+)|\[(\d+)\]", place):
            fields = node if isinstance(node, Mapping) else getattr(node, "_obj", None)
            key = name or int(number)
            if not isinstance(fields, Mapping) or key not in fields or fields[key] is None:
                raise UserError(f"{self.path}: no checkpoint of the DenseCap program, it has no {place}")
            node = fields[key]
        return node

    def number(self, place: str) -> float:
        """Return the number at a location."""
        value = self.at(place)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{self.path}: {place} is not a number")
        return value

    def numbers(self, place: str) -> dict[str, float]:
        """Return all numbers in the table at a location, by name."""
        table = self.at(place)
        pairs = table.items() if isinstance(table, Mapping) else ()
        return {k: v for k, v in pairs if isinstance(v, (int, float)) and not isinstance(v, bool)}

    def array(self, place: str, dimensions: int) -> np.ndarray[Any, Any]:
        """Return the tensor at a location, a view of the file; refuse strided views larger than the file."""
        value = self.at(place)
        if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
            raise UserError(f"{self.path}: {place} is not a tensor of floats")
        if value.ndim != dimensions or value.size == 0 or value.nbytes > self.size:
            raise UserError(f"{self.path}: {place} has the shape {value.shape}, which is no layer of DenseCap")
        return value

    def shape(self, place: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape of the tensor at a location."""
        return self.array(place, dimensions).shape


def open_checkpoint(path: str | Path) -> Torch7Checkpoint:
    """Read a file of the program; one-line ``UserError`` if it is something else, or its package is missing."""
    try:
        from saywhere.papers.densecap2016 import torch7
    except ImportError as error:
        raise UserError("reading Torch7 files needs torchfile: pip install 'saywhere[convert]'") from error
    path = Path(path)
    return Torch7Checkpoint(path, torch7.read(path), path.stat().st_size)


def convert(path: str | Path) -> DenseCap:
    """Return the model of a checkpoint saved by the program, in eval mode and float32.

    Sizes, anchors, words, thresholds and loss weights are those of the file.

    Raises:
        UserError: not such a checkpoint, or a network that the program does not build; one line.
    """
    file = open_checkpoint(path)
    config, words = read_config(file), read_words(file)
    vocabulary = Vocabulary(dict.fromkeys((w for w in words if w != UNKNOWN), 0))
    model = checkpoint.new_network(DenseCap, config, vocabulary)
    ours = model.state_dict()
    wanted = {place: tuple(value.shape) for place, value in to_torch7(ours).items()}

    def read(place: str) -> Tensor:
        array = file.array(f"model.nets.{place}", len(wanted[place]))
        value = torch.from_numpy(array.astype("float32"))
        value = _order_words(place, value, words)
        if tuple(value.shape) != wanted[place]:
            raise UserError(f"{path}: {place} has the shape {tuple(value.shape)}, but the rest wants {wanted[place]}")
        if not value.isfinite().all():
            raise UserError(f"{path}: {place} has numbers that are not finite")
        return value

    with torch.no_grad():
        for name, value in from_torch7(read).items():
            ours[name].copy_(value)
    return model.eval()


def read_words(file: Torch7Checkpoint) -> list[str]:
    """Return the words of the tokens from 1 on."""
    table = file.at("model.opt.idx_to_token")
    words = {str(key): word for key, word in table.items()} if isinstance(table, Mapping) else {}
    listed = [words.get(str(i)) for i in range(1, len(words) + 1)]
    if not listed or not all(isinstance(word, str) for word in listed) or len(set(listed)) < len(listed):
        raise UserError(f"{file.path}: model.opt.idx_to_token is not a list of different words")
    rows = file.shape(f"model.nets.{DECODER}.lookup_table.weight", 2)[0]
    if rows != len(listed) + 2:
        raise UserError(f"{file.path}: {len(listed)} words, but the language model has {rows - 2}")
    return [str(word) for word in listed]


def _order_words(place: str, value: Tensor, words: list[str]) -> Tensor:
    """Move the unknown word's row of the language model after all others, as in ours."""
    if not place.startswith((f"{DECODER}.lookup_table", f"{DECODER}.rnn.modules[3]")) or words[-1] == UNKNOWN:
        return value
    others = [i for i, word in enumerate(words) if word != UNKNOWN]
    unknown = [value[i][None] for i, word in enumerate(words) if word == UNKNOWN]
    never = NEVER if place.endswith("bias") else 0.0
    row = unknown[0] if unknown else torch.full_like(value[:1], never)
    return torch.cat((value[others], row, value[len(words) :]))


def read_config(file: Torch7Checkpoint) -> DenseCapConfig:
    """Return the configuration that follows from the sizes of the weights and the program's options."""
    nets = "model.nets."
    widths = [file.shape(f"{nets}{place}.weight", 4)[0] for place in list(MODULES.values())[:13]]
    starts = [sum(VGG16_DEPTHS[:i]) for i in range(5)]
    anchors = file.array(f"{nets}{RPN}.modules[3].modules[1].modules[3].modules[1].modules[1].anchors", 2)
    _check_centers(file, f"{nets}{RPN}.modules[3].modules[1].modules[3].modules[1].modules[1]")
    pooled = {file.number(f"{nets}localization_layer.nets.roi_pooling.{side}") for side in ("height", "width")}
    if len(pooled) != 1 or len(anchors) != 2:
        raise UserError(f"{file.path}: its regions are not square, or its anchors are not pairs; DenseCap's are")
    fc6, fc7 = (file.shape(f"{nets}recog_base.modules[{i}].weight", 2)[0] for i in (2, 5))
    cells, gates = file.shape(f"{nets}{DECODER}.rnn.modules[1].weight", 2)
    most = file.number(f"{nets}localization_layer.test_max_proposals")
    options = {
        **_losses(file),
        "trunk": {"vgg_channels": [widths[i] for i in starts]},
        "proposals": {
            "anchors": [[[float(w), float(h)] for w, h in anchors.T]],
            "hidden_size": file.shape(f"{nets}{RPN}.modules[1].weight", 4)[0],
            "nms_iou": file.number(f"{nets}localization_layer.test_nms_thresh"),
            "post_nms_top_n": int(most) if most > 0 else 10**6,
        },
        "decoding": {"max_words": int(file.number(f"{nets}{DECODER}.seq_length"))},
        "final_nms": file.number("model.opt.final_nms_thresh"),
        "pool_size": int(pooled.pop()),
        "embed_dim": fc7,
        "fc_size": None if fc6 == fc7 else fc6,
        "word_size": cells - gates // 4,
        "hidden_size": gates // 4,
    }
    try:
        return DenseCapConfig.original().merge(options)
    except UserError as error:
        raise UserError(f"{file.path}: {error}") from error


def _losses(file: Torch7Checkpoint) -> dict[str, float]:
    """Return the training options that the program's options contain."""
    names = {
        "rpn_score_weight": "mid_objectness_weight",
        "rpn_box_weight": "mid_box_reg_weight",
        "score_weight": "end_objectness_weight",
        "box_weight": "end_box_reg_weight",
        "caption_weight": "captioning_weight",
        "box_decay": "box_reg_decay",
        "dropout": "drop_prob",
        "rpn_batch": "sampler_batch_size",
        "rpn_fg_iou": "sampler_high_thresh",
        "rpn_bg_iou": "sampler_low_thresh",
    }
    given = file.numbers("model.opt")
    found = {ours: given[theirs] for ours, theirs in names.items() if theirs in given}
    if "train_remove_outbounds_boxes" in given:
        found["inside_only"] = given["train_remove_outbounds_boxes"] == 1
    return found


def _check_centers(file: Torch7Checkpoint, place: str) -> None:
    centers = [file.number(f"{place}.{name}") for name in ("x0", "y0", "sx", "sy")]
    first = field_center(STRIDE)
    if centers != [first, first, STRIDE, STRIDE]:
        raise UserError(
            f"{file.path}: its cells stand at {centers}, those of VGG-16 at {[first, first, STRIDE, STRIDE]}"
        )


def convert_to_folder(path: str | Path, folder: str | Path) -> DenseCap:
    """Convert as :func:`convert` does, and save the model as a folder with a card."""
    model = convert(path)
    config = model.config
    description = f"DenseCap as its program saved it, {len(model.vocabulary.counts)} words"
    card = (
        f"# {Path(path).stem}\n\n{description}.\n\nMade from a Torch7 checkpoint of the published program by\n"
        f"`saywhere papers convert {Path(path).name} {Path(folder).name}`. It runs with the program's conventions: "
        f"{config.proposals.post_nms_top_n} proposals, suppression at {config.proposals.nms_iou:g} and "
        f"{config.final_nms:g}, images of {config.trunk.long_side} pixels.\n"
        "Its weights are under the terms of whoever published them.\n"
    )
    checkpoint.save(model, folder, card, description)
    return model


def from_torch7(read: Callable[[str], Tensor]) -> dict[str, Tensor]:
    """Return our weights by name; ``read`` returns the program's tensor at a location."""
    ours: dict[str, Tensor] = {}
    for name, place in MODULES.items():
        ours[f"{name}.weight"], ours[f"{name}.bias"] = read(f"{place}.weight"), read(f"{place}.bias")
    ours[WORDS[0]] = read(WORDS[1])
    name, place = LSTM
    weight, bias = swap_gates(read(f"{place}.weight").T), swap_gates(read(f"{place}.bias"))
    hidden = len(bias) // 4
    inputs = weight.shape[1] - hidden
    ours[f"{name}.weight_ih_l0"], ours[f"{name}.weight_hh_l0"] = weight[:, :inputs], weight[:, inputs:]
    ours[f"{name}.bias_ih_l0"], ours[f"{name}.bias_hh_l0"] = bias, torch.zeros_like(bias)
    return ours


def to_torch7(ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the program's tensors by location, from weights by our names or from their gradients."""
    theirs: dict[str, Tensor] = {}
    for name, place in MODULES.items():
        theirs[f"{place}.weight"], theirs[f"{place}.bias"] = ours[f"{name}.weight"], ours[f"{name}.bias"]
    theirs[WORDS[1]] = ours[WORDS[0]]
    name, place = LSTM
    both = torch.cat((ours[f"{name}.weight_ih_l0"], ours[f"{name}.weight_hh_l0"]), dim=1)
    theirs[f"{place}.weight"] = swap_gates(both).T
    theirs[f"{place}.bias"] = swap_gates(ours[f"{name}.bias_ih_l0"])
    return theirs


def swap_gates(values: Tensor) -> Tensor:
    """Reorder blocks i, f, o, g (the program's) along the first dimension to i, f, g, o (torch's), or back."""
    i, f, a, b = values.chunk(4)
    return torch.cat((i, f, b, a))


def gradients(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return the gradients of all parameters by name, 0 if missing, for :func:`to_torch7`."""
    named = model.named_parameters()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in named}


LONG_SIDE = 720
"""Long side of the images beside ``results.json``, in pixels; its boxes refer to these."""
SCORE_LIMIT = 16.0
"""Maximum absolute raw score: our probabilities are rounded, and 0 and 1 have no finite raw score."""


def result(regions: Regions, name: str) -> dict[str, Any]:
    """Return an entry of ``results.json``: boxes ``x y w h`` in pixels of the ``LONG_SIDE`` image, and raw scores."""
    width, height = scaled_size(regions.width, regions.height, LONG_SIDE)
    boxes = torch.from_numpy(regions.boxes).double()
    boxes = geometry.scale(boxes, width / regions.width, height / regions.height)
    probabilities = torch.as_tensor([] if regions.scores is None else regions.scores).double()
    return {
        "img_name": name,
        "boxes": [[round(v, 3) for v in row] for row in x1y1x2y2_to_xywh(ours_to_corners(boxes)).tolist()],
        "scores": [round(v, 5) for v in probabilities.logit().clamp(-SCORE_LIMIT, SCORE_LIMIT).tolist()],
        "captions": list(regions.captions or ()),
    }


def write_results(lines: Path, folder: Path) -> None:
    """Write ``results.json`` of the regions in JSON lines, and their images, for the program's viewer.

    Raises:
        UserError: there are results already, a line is broken or has no scores, or an image is not there, cannot be
            read, or has another size than in the lines.
    """
    if (place := folder / "results.json").exists():
        raise UserError(f"{place}: already exists; give another folder, or remove it first")
    report, results = Report(), list[dict[str, Any]]()
    found = {regions.image or "an image without a name": regions for regions in read_lines(lines, None, report)}
    if not report.ok:
        raise UserError(f"{lines}: {'; '.join(report.lines())}")
    if unscored := [name for name, regions in found.items() if len(regions) and regions.scores is None]:
        raise UserError(f"{lines}: {unscored[0]} has boxes without scores, by which the viewer orders them")
    sources = find_images([*found])
    Outputs(None, folder).check(sources)
    for source in sources:
        regions, image = found.get(source.name), open_image(source.path, LONG_SIDE)
        if regions is None or (regions.width, regions.height) != (image.width, image.height):
            raise UserError(f"{source.path}: is not the image in {lines}, whose size or name is another")
        save_image(out_path(folder, source), resized(image, LONG_SIDE, LONG_SIDE))
        results.append(result(regions, out_path(Path(), source).as_posix()))
    write_text(place, json.dumps({"opt": {"image_size": LONG_SIDE}, "results": results}))
