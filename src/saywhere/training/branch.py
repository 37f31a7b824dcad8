"""Training of the trunk's second branch by CLIP's image tower (Radford et al., 2021), the teacher.

A view is a photograph or a part of one. From it, the branch learns to predict the teacher's embedding and, at each
position, its value path: the last block without attention (Zhou et al., Extract Free Dense Labels from CLIP, 2022).
"""

from __future__ import annotations

import importlib.util
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file as load_arrays
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.parts import BRANCH_CHANNELS, BRANCH_STRIDES, Config, TrunkConfig
from saywhere.data.sample import Sample
from saywhere.engines.tower import MEAN, STD, build_tower, restore
from saywhere.errors import UserError
from saywhere.files import write_atomically, write_text
from saywhere.images import Preprocess, readable
from saywhere.models.bundle import CARD
from saywhere.networks.checkpoint import load_tensors
from saywhere.networks.normalisation import BatchNorm
from saywhere.networks.vision.backbones import Backbone, by_shape
from saywhere.networks.vision.trunk import Tower, Trunk, build_trunk
from saywhere.options import dataclass
from saywhere.text import Vocabulary
from saywhere.training.cache import read_pixels
from saywhere.training.dataset import System
from saywhere.training.progress import tracked

FILE = "branch.safetensors"
"""File with the weights, in the folder of a trained branch."""
GRAPHS = "clip_encoder*.onnx"
"""File name of the teacher in a folder or an installed package."""
HEAD_SIZE, AT_ONCE = 64, 16
"""Size of the teacher's attention heads, and views per forward pass of the teacher."""
BLOCK = {
    "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attn.proj": ("self_attn.out_proj",),
    "mlp.fc1": ("mlp.fc1",), "mlp.fc2": ("mlp.fc2",), "norm1": ("layer_norm1",), "norm2": ("layer_norm2",),
}  # fmt: skip
"""Layers of a teacher block by timm's names, and their names in the file."""
SMALLEST, STRETCH, OWN = 0.25, 0.15, 0.65
"""A part has at least this share of the image's area. Its log aspect ratio differs by at most STRETCH from that of the
image, with probability OWN, or else from that of 13:9, 9:13 or 1."""
EMBEDDING_WEIGHT, CONTRAST_WEIGHT, CONTRAST_TEMPERATURE = 0.5, 0.1, 0.1
TRUNK = TrunkConfig()


@dataclass(frozen=True)
class BranchConfig(Config):
    """Options of the training of a branch.

    Attributes:
        trunk: the trunk that the branch belongs to.
        teacher: an ONNX file of CLIP's image tower, a folder with one, or the name of an installed package.
        views: views per photograph: the whole, and random parts.
    """

    trunk: TrunkConfig = TRUNK
    teacher: str = ""
    views: int = 3

    def __post_init__(self) -> None:
        self.require_between(1, 1000, "views")


def find_teacher(name: str) -> Path:
    """Return the file of :attr:`BranchConfig.teacher`; ``UserError`` if there is none. Nothing is downloaded."""
    if name.isidentifier() and not Path(name).exists() and (spec := importlib.util.find_spec(name)) is not None:
        folders = [Path(place) for place in spec.submodule_search_locations or ()]
    else:
        folders = [Path(name)] if name else []
    found = folders if folders and folders[0].is_file() else [p for f in folders for p in sorted(f.rglob(GRAPHS))]
    if not found:
        raise UserError(
            f"model.teacher: {name or 'nothing'} is neither an ONNX file of CLIP's image tower, nor a folder or an "
            f"installed package with {GRAPHS}; docs/training.md says where to get one"
        )
    return found[0]


def teacher_weights(path: Path) -> dict[str, Tensor]:
    """Return the weights of CLIP's image tower by timm's names from an int8 ONNX file; ``UserError`` if it is none."""
    import onnx
    from onnx import numpy_helper

    try:
        graph = onnx.load(str(path)).graph
        stored = {tensor.name: np.array(numpy_helper.to_array(tensor)) for tensor in graph.initializer}
        found = {name: torch.from_numpy(value) for name, value in stored.items() if name.startswith("vision_model.")}
        for node in graph.node:
            if node.op_type == "MatMulInteger":
                name, base = node.input[1], node.input[1].removesuffix("_quantized")
                values = stored[name].astype(np.float32) - stored[f"{base}_zero_point"].astype(np.float32)
                layer = node.name.strip("/").replace("/", ".").removesuffix(".MatMul_quant")
                found[f"{layer}.weight"] = torch.from_numpy((values * stored[f"{base}_scale"]).T.copy())
        return _renamed({name.removeprefix("vision_model."): value for name, value in found.items()})
    except Exception as error:  # protobuf raises many kinds of errors for other files
        reason = f"it lacks {error}" if isinstance(error, KeyError) else " ".join(str(error).split())[:200]
        raise UserError(f"model.teacher: {path} is no image tower of CLIP in int8: {reason}") from error


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {
        "patch_embed.proj.weight": weights["embeddings.patch_embedding.weight"],
        "cls_token": weights["embeddings.class_embedding"].reshape(1, 1, -1),
        "pos_embed": weights["embeddings.position_embedding.weight"][None],
        "head.weight": weights["visual_projection.weight"],
    }
    for ours, theirs in (("norm_pre", "pre_layrnorm"), ("norm", "post_layernorm")):
        found |= {f"{ours}.{kind}": weights[f"{theirs}.{kind}"] for kind in ("weight", "bias")}
    for number in range(max(1, sum(name.endswith("layer_norm1.weight") for name in weights))):
        for ours, theirs in BLOCK.items():
            for kind in ("weight", "bias"):
                parts = [weights[f"encoder.layers.{number}.{name}.{kind}"] for name in theirs]
                found[f"blocks.{number}.{ours}.{kind}"] = torch.cat(parts)
    return found


class Teacher(nn.Module):
    """CLIP's image tower in bfloat16, with the weights of :func:`teacher_weights`.

    Attributes:
        size: height and width of its input, in pixels.
        side: number of patch rows and of patch columns.
        dim: size of an embedding.
    """

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        import timm

        super().__init__()
        (self.dim, width), patch = weights["head.weight"].shape, weights["patch_embed.proj.weight"].shape[-1]
        self.side = round((weights["pos_embed"].shape[1] - 1) ** 0.5)
        self.size = self.side * patch
        with torch.device("meta"):
            tower: Any = timm.create_model(
                "vit_base_patch16_clip_quickgelu_224", pretrained=False, img_size=self.size, patch_size=patch,
                embed_dim=width, depth=1 + max(int(key.split(".")[1]) for key in weights if key.startswith("blocks.")),
                num_heads=max(1, width // HEAD_SIZE), mlp_ratio=len(weights["blocks.0.mlp.fc1.bias"]) / width,
                num_classes=self.dim,
            )  # fmt: skip
            tower.head = nn.Linear(width, self.dim, bias=False)
        tower.load_state_dict(weights, assign=True)
        self.tower = tower.bfloat16().eval()
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return maps ``(N, dim, side, side)`` and embeddings ``(N, dim)`` of pixels ``(N, 3, size, size)``, 0 to 1."""
        tower, (mean, std) = self.tower, (pixels.new_tensor(each)[:, None, None] for each in (MEAN, STD))
        x = tower.norm_pre(tower._pos_embed(tower.patch_embed(((pixels - mean) / std).bfloat16())))
        for block in tower.blocks[:-1]:
            x = block(x)
        last, width = tower.blocks[-1], x.shape[-1]
        own = functional.linear(last.norm1(x), last.attn.qkv.weight[2 * width :], last.attn.qkv.bias[2 * width :])
        values = tower.head(tower.norm(last.attn.proj(own)))[:, 1:].float()
        embeddings = tower.head(tower.norm(last(x)[:, 0])).float()
        return values.transpose(1, 2).unflatten(2, (self.side, self.side)), embeddings


class Lessons(nn.Module):
    """Compute from a view's pixels the input of the branch, and the teacher's outputs at the teacher's input size."""

    settings = "lessons of a branch"

    def __init__(self, backbone: Backbone, teacher: Teacher, preprocess: Preprocess) -> None:
        super().__init__()
        self.backbone, self.teacher, self.preprocess = backbone, teacher, preprocess

    def forward(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        """Return per view the map ``(C, H, W)``, the values ``(dim, side, side)`` and the embedding ``(dim, 1, 1)``."""
        self.teacher.to(pixels[0].device)
        level = self.backbone.strides.index(BRANCH_STRIDES[0])
        seen = [maps[level] for maps in self.backbone(pixels)]
        size, (mean, std) = (self.teacher.size,) * 2, (self.preprocess.mean, self.preprocess.std)
        squeeze = partial(functional.interpolate, size=size, mode="bicubic", antialias=True)
        images = [x * x.new_tensor(std)[:, None, None] + x.new_tensor(mean)[:, None, None] for x in pixels]
        small = torch.cat([squeeze(image[None]) for image in images]).clamp(0, 1)
        values, embeddings = zip(*(self.teacher(part) for part in small.split(AT_ONCE)), strict=True)
        return list(zip(seen, torch.cat(values), torch.cat(embeddings)[..., None, None], strict=True))


@dataclass(frozen=True, eq=False)
class Answers:
    """Outputs of branch and teacher for N views, all normalised to length 1.

    Attributes:
        values, true_values: ``(N, positions, dim)`` of branch and teacher.
        embeddings, true_embeddings: ``(N, dim)`` of branch and teacher.
    """

    values: Tensor
    true_values: Tensor
    embeddings: Tensor
    true_embeddings: Tensor


class Student(nn.Module):
    """A trunk whose branch is trained, with layers that predict the teacher's outputs from the branch's maps.

    Only the branch is kept. The teacher's outputs are standardised by their mean and variance in training so far.
    """

    def __init__(self, config: BranchConfig, trunk: Trunk, teacher: Teacher) -> None:
        super().__init__()
        assert trunk.branch is not None
        self.config, self.vocabulary, self.trunk, self.side = config, Vocabulary({}), trunk, teacher.side
        self.branch = trunk.branch.requires_grad_(True)
        self._lessons = (Lessons(trunk.backbone, teacher, trunk.preprocess),)  # a tuple: not the network's weights
        fine, coarse = BRANCH_CHANNELS
        self.fine, self.coarse = nn.Conv2d(fine, teacher.dim, 1), nn.Conv2d(coarse, teacher.dim, 1)
        self.whole = nn.Linear(coarse + fine, teacher.dim)
        self.value_norm, self.embedding_norm = (BatchNorm(teacher.dim, affine=False, momentum=None) for _ in range(2))
        self.to(memory_format=torch.channels_last)  # by far the fastest on a CPU

    @property
    def extractor(self) -> Lessons:
        """Module that computes what training may cache."""
        return self._lessons[0]

    @property
    def copied(self) -> nn.Module:
        """The layers initialised as copies of the backbone's; they form the parameter group ``backbone``."""
        return nn.ModuleList([self.branch.stages, self.branch.head])

    def forward(
        self, features: Sequence[tuple[Tensor, ...]], targets: Sequence[Any], generator: torch.Generator | None = None
    ) -> Answers:
        """Return the outputs of branch and teacher for views, given their features from :class:`Lessons`."""
        told = by_shape(self.tell, [(row[0],) for row in features])
        values, embeddings = (torch.stack(rows).float() for rows in zip(*told, strict=True))
        true_values = torch.stack([row[1] for row in features]).flatten(2).transpose(1, 2)
        true_embeddings = torch.stack([row[2].flatten() for row in features])
        return Answers(
            functional.normalize(values.flatten(2).transpose(1, 2), dim=-1),
            self._standardised(self.value_norm, true_values.flatten(0, 1)).view_as(true_values),
            functional.normalize(embeddings, dim=-1),
            self._standardised(self.embedding_norm, true_embeddings),
        )

    def tell(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return values ``(B, dim, side, side)`` and embeddings ``(B, dim)`` for maps ``(B, C, H, W)`` of one size."""
        branch, maps = self.branch, maps.contiguous(memory_format=torch.channels_last)
        near = branch.narrow(maps).relu()
        near, far = branch.around(near).relu() + near, branch.head.conv(branch.stages(maps)).clamp(0, 6)
        values = functional.interpolate(self.coarse(far), (self.side, self.side), mode="bilinear")
        values = values + self.fine(functional.adaptive_avg_pool2d(near, self.side))
        return values, self.whole(torch.cat((far.mean((2, 3)), near.mean((2, 3))), dim=1))

    def _standardised(self, norm: BatchNorm, rows: Tensor) -> Tensor:
        rows = rows.float()
        if self.training:
            norm(rows)  # updates the running mean and variance
        mean, variance = norm.get_buffer("running_mean"), norm.get_buffer("running_var")
        return functional.normalize((rows - mean) * (variance + norm.eps).rsqrt(), dim=-1)


class BranchCriterion(nn.Module):
    """Compute one minus the cosine for values and embeddings, and a contrastive loss of embeddings and views."""

    def forward(self, answers: Answers) -> dict[str, Tensor]:
        """Return the weighted losses ``values``, ``embedding`` and ``contrast``."""
        products = answers.embeddings @ answers.true_embeddings.T
        own = torch.arange(len(products), device=products.device)
        return {
            "values": 1 - (answers.values * answers.true_values).sum(dim=-1).mean(),
            "embedding": EMBEDDING_WEIGHT * (1 - products.diagonal().mean()),
            "contrast": CONTRAST_WEIGHT * functional.cross_entropy(products / CONTRAST_TEMPERATURE, own),
        }


@dataclass(frozen=True, eq=False)
class View(Sample):
    """A part ``crop`` (left, top, right, bottom) of a photograph, in its pixels, without annotations."""

    crop: tuple[int, int, int, int] = (0, 0, 0, 0)


def make_views(sample: Sample, views: int) -> Iterator[View]:
    """Yield the whole photograph and parts of it, drawn with its file name as seed."""
    random = np.random.default_rng(zlib.crc32(os.fsencode(sample.image.name)))
    for number in range(views):
        width, height = sample.width, sample.height
        if number:
            ratio = width / height if random.random() < OWN else float(random.choice((13 / 9, 9 / 13, 1.0)))
            ratio *= np.exp(random.uniform(-STRETCH, STRETCH))
            area = random.uniform(SMALLEST, 1) * width * height
            wide, high = (area * ratio) ** 0.5, (area / ratio) ** 0.5
            fits = min(1, width / wide, height / high)
            width, height = max(1, round(wide * fits)), max(1, round(high * fits))
        left, top = (round(random.random() * room) for room in (sample.width - width, sample.height - height))
        yield View(sample.image, width, height, np.zeros((0, 4)), (), crop=(left, top, left + width, top + height))


@dataclass(frozen=True)
class NoTarget:
    """Empty target: the features of a view already contain it."""


class BranchSystem(System):
    """Training of a second branch; the limits in a recipe's data count views."""

    about = "is a second branch of a trunk, which has learnt from the image tower of CLIP"
    unit = "views"
    presets: ClassVar = {"default": BranchConfig}

    def losses(self, config: BranchConfig) -> tuple[str, ...]:
        return ("values", "embedding", "contrast")

    def usable(self, samples: Sequence[Sample], config: BranchConfig) -> list[Sample]:
        """Return the views of all photographs, annotated or not."""
        return [view for sample in samples for view in make_views(sample, config.views)]

    def texts(self, sample: Sample) -> tuple[str, ...]:
        return ()

    def count(self, sample: Sample) -> int:
        return 1

    def build(self, config: BranchConfig, vocabulary: Vocabulary, pretrained: bool) -> Student:
        """Build a branch as a copy of the backbone's last layers."""
        trunk = build_trunk(replace(config.trunk, branch=True), head=True, pretrained=pretrained)
        assert trunk.branch is not None and trunk.head is not None
        trunk.branch.head.load_state_dict(trunk.head.state_dict())
        return Student(config, trunk, Teacher(teacher_weights(find_teacher(config.teacher))))

    def extractor(self, network: Student) -> nn.Module:
        return network.extractor

    def criterion(self, network: Student, samples: Sequence[Sample]) -> BranchCriterion:
        return BranchCriterion()

    def targets(self, network: Student) -> Callable[..., NoTarget]:
        return lambda sample, size, flipped, random: NoTarget()

    @staticmethod
    def save(network: Student, folder: Path, card: str, description: str, dtype: torch.dtype) -> None:
        """Write the weights of the branch, and the model card."""
        weights = {
            name: value.detach().cpu().to(dtype if value.is_floating_point() else value.dtype).contiguous()
            for name, value in network.branch.state_dict().items()
        }
        write_atomically(folder / FILE, lambda stream: stream.write(to_bytes(weights)))
        write_text(folder / CARD, card)


def tower_graph(
    teacher: Path, tuning: str | None, mean: Sequence[float], std: Sequence[float], levels: np.ndarray | None = None
) -> bytes:
    """Return the graph of an image tower, see :func:`saywhere.engines.tower.build_tower`.

    ``teacher`` is CLIP's image tower in int8, ``tuning`` a file of trained additions or None. ``UserError`` if a file
    is not what it should be.
    """
    try:
        added = None if tuning is None else restore(load_arrays(tuning))
    except (SafetensorError, OSError) as error:
        raise UserError(f"tuning: {tuning} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
    return build_tower(teacher, np.array(mean, np.float32), np.array(std, np.float32), levels, added)


def make_tower(teacher: Path, tuning: str | None, images: Sequence[Sample], preprocess: Preprocess, out: Path) -> str:
    """Write the graph of an image tower whose outputs are standardised to mean 0 and variance 1 over the images.

    Means and standard deviations go to ``levels.npy`` beside ``out``. Unreadable images are reported and skipped;
    ``UserError`` if none is readable.

    Returns:
        A short description of what was made.
    """
    build = partial(tower_graph, teacher, tuning, preprocess.mean, preprocess.std)
    write_atomically(out, lambda stream: stream.write(build()))
    tower, sums = Tower(out), list[np.ndarray]()
    pixels = readable(tracked("levels of the tower", images), lambda image: read_pixels(image, preprocess))
    for seen in (tower(own) for _, own in pixels):
        parts = [part.flatten(1).double() for part in seen]
        sums.append(np.stack([torch.cat([(part**power).mean(dim=1) for part in parts]).numpy() for power in (1, 2)]))
    if not sums:
        raise UserError("a tower needs images, and not one can be read")
    mean, square = np.mean(sums, axis=0)
    levels = np.stack((mean, np.sqrt(np.maximum(square - mean**2, 1e-12)))).astype(np.float32)
    write_atomically(out.with_name("levels.npy"), lambda stream: np.save(stream, levels))
    write_atomically(out, lambda stream: stream.write(build(levels)))
    return f"levels of {len(sums):,} images"


def load_branch(trunk: Trunk, path: str | Path) -> None:
    """Load the trained weights of a trunk's branch, or the graph of its tower.

    ``UserError`` if the trunk has neither, or the file does not fit.
    """
    if trunk.config.tower:
        trunk.tower = Tower(Path(path))
        _ = trunk.tower.session
        return
    if trunk.branch is None:
        raise UserError("training.branch needs model.trunk.branch=true")
    try:
        weights = load_tensors(Path(path))
        trunk.branch.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in weights.items()})
    except (UserError, RuntimeError) as error:
        raise UserError(f"training.branch: {path} cannot be loaded: {' '.join(str(error).split())[:200]}") from error
