"""Torch7 binary files as the program writes them, and a small checkpoint of it, made up."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy

from saywhere.papers.densecap2016 import convert as places

NAMES = {"float32": "Float", "float64": "Double", "int64": "Long", "uint8": "Byte"}


@dataclass(eq=False)
class Object:
    """An object of a Torch class, with its fields."""

    name: str
    fields: dict[Any, Any] = field(default_factory=dict)


@dataclass(eq=False)
class View:
    """A tensor that shares its storage, with a 1-based offset and strides in elements."""

    storage: numpy.ndarray
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 1


@dataclass(eq=False)
class Function:
    """A dumped Lua function."""

    code: bytes = b"\x1bLJ"


class Writer:
    def __init__(self, file: IO[bytes]):
        self.file, self.seen = file, {}

    def pack(self, form: str, *values: Any) -> None:
        self.file.write(struct.pack("<" + form, *values))

    def string(self, text: str) -> None:
        data = text.encode()
        self.pack("i", len(data))
        self.file.write(data)

    def reference(self, kind: int, value: Any) -> bool:
        """Write the object's number; whether its content is to follow."""
        new = id(value) not in self.seen
        number, _ = self.seen.setdefault(id(value), (len(self.seen) + 1, value))
        self.pack("ii", kind, number)
        return new

    def write(self, value: Any) -> None:
        if value is None:
            self.pack("i", 0)
        elif isinstance(value, bool):
            self.pack("ii", 5, value)
        elif isinstance(value, (int, float)):
            self.pack("id", 1, value)
        elif isinstance(value, str):
            self.pack("i", 2)
            self.string(value)
        elif isinstance(value, dict):
            if self.reference(3, value):
                self.table(value)
        elif isinstance(value, Function):
            if self.reference(8, value):
                self.pack("i", len(value.code))
                self.file.write(value.code)
                self.write({})
        elif self.reference(4, value):
            self.object(value)

    def table(self, value: dict[Any, Any]) -> None:
        self.pack("i", len(value))
        for key, item in value.items():
            self.write(key)
            self.write(item)

    def object(self, value: Any) -> None:
        self.string("V 1")
        if isinstance(value, Object):
            self.string(value.name)
            self.write(value.fields)
            return
        if isinstance(value, numpy.ndarray):
            value = View(value.reshape(-1)[:], value.shape, tuple(s // value.itemsize for s in value.strides))
        kind = NAMES[value.storage.dtype.name]
        self.string(f"torch.{kind}Tensor")
        self.pack(
            f"i{len(value.shape)}q{len(value.shape)}qq", len(value.shape), *value.shape, *value.strides, value.offset
        )
        if self.reference(4, value.storage):
            self.string("V 1")
            self.string(f"torch.{kind}Storage")
            self.pack("q", value.storage.size)
            self.file.write(value.storage.tobytes())


def write(path: Path, value: Any) -> Path:
    with path.open("wb") as file:
        Writer(file).write(value)
    return path


WORDS = ("a", "dog", "in", "the", "grass", "<UNK>")


def tables(tensors: dict[str, numpy.ndarray], root: dict[Any, Any]) -> None:
    """Put each tensor at its place, ``a.modules[1].weight``, in nested objects below ``root``."""
    for name, tensor in tensors.items():
        node = root
        parts = name.replace("[", ".[").split(".")
        for part in parts[:-1]:
            key = int(part[1:-1]) if part.startswith("[") else part
            child = node.setdefault(key, {} if key in ("modules", "nets") else Object("nn.Module"))
            node = child.fields if isinstance(child, Object) else child
        node[parts[-1]] = tensor


def random_checkpoint(seed: int = 0, words: tuple[str, ...] = WORDS, **sizes: Any) -> dict[Any, Any]:
    """A checkpoint with the nesting of the program's and random weights.

    ``sizes``: channels (5), rpn, fc6, fc7, word, hidden, anchors (k pairs), pool.
    """
    c = sizes.get("channels", (3, 4, 5, 6, 7))
    rpn, fc6, fc7 = sizes.get("rpn", 9), sizes.get("fc6", 12), sizes.get("fc7", 10)
    word, hidden, pool = sizes.get("word", 6), sizes.get("hidden", 8), sizes.get("pool", 3)
    anchors = sizes.get("anchors", ((30, 40), (60, 20)))
    v, k = len(words), len(anchors)
    widths = [3, *(w for w, n in zip(c, (2, 2, 3, 3, 3), strict=True) for _ in range(n))]
    modules = list(places.MODULES.values())
    shapes: dict[str, tuple[int, ...]] = {
        **{modules[i]: (widths[i + 1], widths[i], 3, 3) for i in range(13)},
        modules[13]: (rpn, c[-1], 3, 3),
        modules[14]: (4 * k, rpn, 1, 1),
        modules[15]: (2 * k, rpn, 1, 1),
        modules[16]: (fc6, c[-1] * pool**2),
        modules[17]: (fc7, fc6),
        modules[18]: (1, fc7),
        modules[19]: (4, fc7),
        modules[20]: (word, fc7),
        modules[21]: (v + 1, hidden),
    }
    random = numpy.random.default_rng(seed)

    def values(*shape: int) -> numpy.ndarray:
        scale = 2.0 / numpy.prod(shape[1:]) ** 0.5 if len(shape) > 1 else 0.1
        return (random.standard_normal(shape) * scale).astype(numpy.float32)

    tensors = {f"{place}.weight": values(*shape) for place, shape in shapes.items()}
    tensors |= {f"{place}.bias": values(shape[0]) for place, shape in shapes.items()}
    tensors[f"{modules[0]}.weight"] *= 0.02  # pixels go up to 255
    for box_layer in (modules[14], modules[19]):
        tensors[f"{box_layer}.weight"] *= 0.1
    tensors[places.WORDS[1]] = values(v + 2, word)
    tensors[f"{places.LSTM[1]}.weight"] = values(word + hidden, 4 * hidden)
    tensors[f"{places.LSTM[1]}.bias"] = values(4 * hidden)
    nets: dict[Any, Any] = {}
    tables(tensors, nets)
    rpn_net = nets["localization_layer"].fields["nets"]["rpn"].fields["modules"]
    branch = rpn_net[3].fields["modules"][1].fields["modules"]
    shapes_ = numpy.array(anchors, dtype=numpy.float32).T.copy()
    maker = Object("nn.MakeAnchors", {"anchors": shapes_, "x0": 8.5, "y0": 8.5, "sx": 16, "sy": 16})
    branch[3] = Object("nn.ConcatTable", {"modules": {1: Object("nn.Sequential", {"modules": {1: maker}})}})
    layer = nets["localization_layer"].fields
    layer["nets"]["roi_pooling"] = Object("nn.BilinearRoiPooling", {"height": pool, "width": pool})
    layer.update(test_nms_thresh=0.7, test_max_proposals=40)
    nets["language_model"].fields["seq_length"] = 6
    opt = {"idx_to_token": dict(enumerate(words, 1)), "final_nms_thresh": 0.3, "mid_box_reg_weight": 0.05}
    model = Object("DenseCapModel", {"nets": nets, "opt": opt})
    return {"model": model, "opt": opt, "iter": 10, "gradients": numpy.zeros(7, numpy.float32), "f": Function()}
