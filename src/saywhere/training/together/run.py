"""A whole run: all parts of a model learn together with the end of its backbone."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.configs.parts import ProposalConfig
from saywhere.errors import UserError
from saywhere.networks import checkpoint
from saywhere.networks.vision.trunk import Trunk
from saywhere.training.averaging import MovingAverage
from saywhere.training.dataset import evenly
from saywhere.training.loop import save_state
from saywhere.training.optimizers import learning_rate_factor
from saywhere.training.precision import explain_precision
from saywhere.training.progress import track
from saywhere.training.together.backbone import BackboneEnd, Front, SharedMaps
from saywhere.training.together.data import SCALES, Views, batches, generator_of, read_all
from saywhere.training.together.kinds import KindsTask
from saywhere.training.together.tasks import SETTINGS, PartTask, Settings, Task, View

PARTS = ("densecap", "aligner", "captioner")
END = Settings(1.5e-4, betas=(0.9, 0.99), decay=0.01, clip=math.inf)
"""How the end of the backbone is trained."""
WARMUP = 20
"""Steps in which the learning rates rise."""
RAMP = 15, 45
"""Steps between which the kinds come to count for the backbone: their layer begins with nothing."""
FREE = ("epochs", "cache", "device")
"""Options that may differ when a run is resumed."""
Seen = tuple[View, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Sources:
    """Hold the data sets of a run, each a tuple of folders or files.

    Attributes:
        sentences: teach the aligner and the captioner.
        boxes: teach the dense captioner: what is not boxed in their images is background.
        names: teach what boxes show; what is not boxed is not background.
    """

    sentences: tuple[Path, ...]
    boxes: tuple[Path, ...]
    names: tuple[Path, ...]


@dataclass(frozen=True)
class Options:
    """Hold the options of a run.

    Attributes:
        split: of the data sets, to learn from.
        epochs: passes over the images with sentences or boxes.
        batch: of these images a step, and beside them a quarter as many that have only names.
        validation: split of the first data sets for sentences and boxes that chooses the epoch; None for the last one.
        limit: at most so many of its images.
        share: of the new weights in what is kept; the rest are those of the model that the run began with.
        cache: folder of the maps.
        seed: of all that is random.
        device: where it runs.
        precision: ``bf16`` computes the parts in bfloat16, on a processor with such instructions; or ``32``.
    """

    split: str = "train"
    epochs: int = 4
    batch: int = 128
    validation: str | None = None
    limit: int = 200
    share: float = 0.5
    cache: Path = Path("cache/front")
    seed: int = 0
    device: str = "cpu"
    precision: str = "32"


def train_together(
    model: str | Path, sources: Sources, out: Path, options: Options, changes: Mapping[str, Any] | None = None
) -> Path:
    """Train the parts of a model together with the last stages of its backbone; a run in ``out`` is resumed.

    The maps of the stages before are computed once. Each step the last stages turn them into the coarsest map, every
    part learns from it by its own losses and with its own optimiser, and the sum of what they want changed in the map,
    each divided by its usual size, trains the last stages. What is kept are weights between those of the beginning and
    their moving average, after the epoch whose validation losses, as shares of those before, have the smallest mean.

    Args:
        model: with a dense captioner, an aligner, a captioner and classes.
        sources: the data.
        out: folder of the run.
        options: of the run.
        changes: options of the model, by name with dots.

    Returns:
        the folder of the model, which has no classes: they are to be taught anew on this backbone.

    Raises:
        UserError: the model lacks a part, or its backbone is none whose end can be trained; wrong data; a full disk; a
            loss that is not finite; or ``out`` holds another run.
    """
    if not 0 < options.share <= 1:
        raise UserError(f"share is above 0 and at most 1, not {options.share:g}")
    if options.precision not in ("32", "bf16"):
        raise UserError(f"precision is 32 or bf16, not {options.precision!r}")
    networks: Any = checkpoint.load_networks(model, options.device, changes)
    if missing := [part for part in (*PARTS, "classes") if part not in networks]:
        raise UserError(f"{model} has no {missing[0]}, and all parts are trained together")
    roots = {name: [str(root) for root in found] for name, found in asdict(sources).items()}
    free = {name: value for name, value in asdict(options).items() if name not in FREE}
    facts = {"model": str(model), "changes": dict(changes or {}), **roots, **free}
    run = _Run(networks, sources, out, options, json.loads(json.dumps(facts)))
    run.resume()
    with explain_precision("--precision 32"):
        while run.epoch < options.epochs:
            run.train()
            run.finish()
    return out / "model"


class _Run:
    """Networks, data, optimisers, and how far a run has come."""

    def __init__(self, networks: dict[str, Any], sources: Sources, out: Path, options: Options, facts: dict[str, Any]):
        self.networks: dict[str, Any] = {part: networks[part] for part in PARTS}
        self.out, self.options, self.facts = out, options, facts
        self.trunk: Trunk = networks["densecap"].trunk.requires_grad_(False)
        front = Front(self.trunk, cast(ProposalConfig, networks["aligner"].config.proposals))
        self.end = BackboneEnd(self.trunk)
        sentences, boxes, names = (read_all(roots, options.split) for roots in asdict(sources).values())
        checks: list[list[Any]] = [[], []]
        if options.validation is not None:
            firsts = sources.sentences[:1], sources.boxes[:1]
            checks = [evenly(read_all(first, options.validation), options.limit) for first in firsts]
        self.tasks: list[Task] = [
            PartTask(part, self.networks[part], *((boxes, checks[1]) if part == "densecap" else (sentences, checks[0])))
            for part in PARTS
        ]
        self.parts = [task for task in self.tasks if isinstance(task, PartTask)]
        kinds = KindsTask(networks["classes"], self.end, names)
        self.tasks.append(kinds)
        for task in self.tasks:
            if not task.samples:
                raise UserError(f"no image of the split {options.split} teaches the {task.name}")
        main = {image: sample for task in self.parts for image, sample in task.samples.items()}
        only = {image: sample for image, sample in kinds.samples.items() if image not in main}
        held = {image: sample for task in self.parts for image, sample in task.validation.items()}
        views = partial(Views.of, options.cache, front)
        self.views = views(main, SCALES, True, "maps of the images")
        self.beside = views(only, SCALES[:1], True, "maps of the images with names") if only else None
        self.held = views(held, SCALES[:1], False, "maps of the validation images") if held else None
        for module in (self.trunk.pyramid, self.trunk.localization):
            assert module is not None
            module.requires_grad_(True)
        self.optimizers = {task.name: _optimizer(task.parameters(), SETTINGS[task.name]) for task in self.tasks}
        self.optimizers["backbone"] = _optimizer(self.end.parameters(), END)
        self.epoch, self.best, self.before = 0, math.inf, dict[str, float]()
        weights = {name: tensor for name, tensor in self._state().items() if tensor.is_floating_point()}
        self.average = MovingAverage(weights, share=options.share)

    @property
    def plan(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The batches of this epoch."""
        counts = len(self.views.images), len(self.beside.images) if self.beside else 0
        return batches(counts, (self.options.batch, self.options.batch // 4), self.options.seed, self.epoch)

    def train(self) -> None:
        """Go through one epoch."""
        for network in self.networks.values():
            network.train()
        plan, losses = self.plan, defaultdict[str, list[float]](list)
        with track(f"epoch {self.epoch + 1}/{self.options.epochs}", len(plan)) as progress:
            for number, (rows, others) in enumerate(plan):
                step = self.epoch * len(plan) + number
                factor = learning_rate_factor(step, len(plan) * self.options.epochs, WARMUP, "cosine")
                for name, optimizer in self.optimizers.items():
                    optimizer.param_groups[0]["lr"] = (SETTINGS | {"backbone": END})[name].lr * factor
                random, generator = generator_of(self.options.seed, self.epoch, number)
                seen = [self.views.choose(row, random) for row in rows]
                seen += [self.beside.choose(row, random) for row in others] if self.beside else []
                self._step(seen, step, random, generator, losses)
                self.average.update()
                progress.advance(1, "  ".join(f"{name} {np.mean(values[-8:]):.3f}" for name, values in losses.items()))
        self.epoch += 1

    def _step(
        self,
        seen: Sequence[Seen],
        step: int,
        random: np.random.Generator,
        generator: torch.Generator,
        losses: dict[str, list[float]],
    ) -> None:
        """Let every part learn from a batch, and then the end of the backbone."""
        shared = SharedMaps(self.end, [maps for _, maps in seen], [view.size for view, _ in seen])
        for task in self.tasks:
            settings, optimizer = SETTINGS[task.name], self.optimizers[task.name]
            rows = [i for i, (view, _) in enumerate(seen) if view.image in task.samples]
            rows = random.permutation(rows)[: math.ceil(settings.share * len(rows))].tolist()
            rows.sort(key=lambda i: seen[i][0].size)  # images of one shape share a batch
            for chosen in _split(rows, settings.images):
                with self._precision():
                    found = task.losses(shared.images(chosen), [seen[i][0] for i in chosen], random, generator)
                    loss = torch.stack(list(found.values())).sum()
                if not math.isfinite(loss.item()):
                    raise UserError(f"the loss of the {task.name} is {loss.item()} in epoch {self.epoch + 1}")
                loss.backward()
                if _clip(task.parameters(), settings.clip):
                    optimizer.step()
                optimizer.zero_grad()
                losses[task.name].append(loss.item())
            ramp = (step - RAMP[0]) / (RAMP[1] - RAMP[0]) if isinstance(task, KindsTask) else 1.0
            shared.collect(task.name, min(1.0, max(0.0, ramp)))
        shared.backward()
        if _clip(self.end.parameters(), END.clip):
            self.optimizers["backbone"].step()
        self.optimizers["backbone"].zero_grad()

    def _precision(self) -> Any:
        return (
            torch.autocast(torch.device(self.options.device).type, torch.bfloat16)
            if self.options.precision == "bf16"
            else nullcontext()
        )

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Return the mean loss of each part on the validation images."""
        if self.held is None:
            return {}
        for network in self.networks.values():
            network.eval()
        found = defaultdict[str, list[float]](list)
        for chosen in _split(list(range(len(self.held.images))), 50):
            seen = [self.held.read(row) for row in chosen]
            shared = SharedMaps(self.end, [maps for _, maps in seen], [view.size for view, _ in seen])
            for task in self.parts:
                rows = [i for i, (view, _) in enumerate(seen) if view.image in task.validation]
                if rows:
                    random, generator = generator_of(self.options.seed, 0, 0)
                    losses = task.losses(shared.images(rows), [seen[i][0] for i in rows], random, generator)
                    found[task.name].append(sum(loss.item() for loss in losses.values()))
        return {name: float(np.mean(values)) for name, values in found.items()}

    def finish(self) -> None:
        """Validate the average of the weights, keep it if it is the best so far, and save the state of the run."""
        with self.average.applied():
            losses = self.validate()
            shares = [value / self.before[name] for name, value in losses.items()]
            value = float(np.mean(shares)) if shares else -float(self.epoch)
            terms = "  ".join(f"{name} {loss:.4f} ({self.before[name]:.4f} before)" for name, loss in losses.items())
            better, self.best = value < self.best, min(value, self.best)
            if better:
                found = f" Validation losses: {terms}." if losses else ""
                card = f"# {', '.join(PARTS)}\n\nTrained together, after epoch {self.epoch}.{found}\n"
                checkpoint.save(self.networks, self.out / "model", card, "parts trained together")
        if losses:
            mark = " (best so far)" if better else ""
            print(f"epoch {self.epoch}/{self.options.epochs}: {terms}{mark}", file=sys.stderr, flush=True)
        save_state(self.state_dict(), self.out / "last.ckpt")

    def resume(self) -> None:
        """Take the state of the run in ``out`` up, or measure what there is before training."""
        path = self.out / "last.ckpt"
        if not path.exists():
            self.before = self.validate()
            return
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except Exception as error:  # torch raises many classes of its own
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"{path} cannot be read ({reason}); remove it to start over") from error
        changed = [key for key, value in self.facts.items() if state["facts"].get(key) != value]
        if changed:
            before, now = state["facts"].get(changed[0]), self.facts[changed[0]]
            raise UserError(f"{self.out} holds a run with {changed[0]}={before}, not {now}: name another folder")
        print(f"resuming the run in {self.out}", file=sys.stderr)
        for name, tensor in self._state().items():
            tensor.copy_(state["weights"][name])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.average.load_state_dict(state["average"])
        self.end.sizes = state["sizes"]
        self.epoch, self.best, self.before = state["epoch"], state["best"], state["before"]

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs."""
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        numbers = {"epoch": self.epoch, "best": self.best, "before": self.before, "sizes": self.end.sizes}
        average = self.average.state_dict()
        return {"facts": self.facts, "weights": self._state(), "optimizers": optimizers, "average": average, **numbers}

    def _state(self) -> dict[str, Tensor]:
        """All weights and statistics by name, those of the trunk once."""
        modules: dict[str, nn.Module] = {**self.networks, "classes": cast(KindsTask, self.tasks[-1]).layer}
        found = {f"{part}.{name}": t for part, module in modules.items() for name, t in module.state_dict().items()}
        trunk = {f"trunk.{name}": tensor for name, tensor in self.trunk.state_dict().items()}
        return {**{name: tensor for name, tensor in found.items() if ".trunk." not in name}, **trunk}


def _optimizer(parameters: list[nn.Parameter], settings: Settings) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, settings.lr, settings.betas, weight_decay=settings.decay, fused=True)


def _split(rows: list[int], size: int | None) -> list[list[int]]:
    size = size or max(1, len(rows))
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def _clip(parameters: list[nn.Parameter], limit: float) -> bool:
    """Bound the size of the gradient; return whether it is finite."""
    return math.isfinite(float(nn.utils.clip_grad_norm_(parameters, limit)))
