"""A recipe of stages: read, checked as a whole before anything starts, and run, skipping finished stages."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from saywhere import options
from saywhere.errors import UserError
from saywhere.files import explain_full_disk, read_record, write_text
from saywhere.inference.claims import locked
from saywhere.models.bundle import BUNDLED, CONFIG, INFORMATION, VOCABULARY, WEIGHTS, Bundle
from saywhere.options import dataclass
from saywhere.report import collect_left_out, leave_out
from saywhere.stages.kinds import EYES, KINDS, MODEL, Card, DataSet, Done, Reader, Stage, Start, Train, Work, copy_model
from saywhere.training import recipe as recipes
from saywhere.training.progress import tracked

RECORD = "stage.json"
"""File in a stage's folder that records its inputs and results."""
STAGES = "stages"
"""Folder of the stages in the run's folder."""
_NAME = re.compile(r"\$([A-Za-z][\w-]*)")


@dataclass(frozen=True, kw_only=True)
class StagedRecipe:
    """Description of a run of several stages.

    Attributes:
        name: name of the run; its default folder is ``runs/NAME``.
        description: one line for the model card.
        seed: seed of all stages that set none.
        data: paths of data sets by any name, which stands for the path as ``$NAME`` in all stages.
        stages: in order, by name; each with its ``kind`` (by default its name) and the options of that kind, see
            :data:`saywhere.stages.kinds.KINDS`.

    In a stage, ``$OTHER`` stands for the result of an earlier stage OTHER.
    """

    name: str
    description: str = ""
    seed: int = 0
    data: dict[str, str] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]]

    def __post_init__(self) -> None:
        recipes.check_name(self.name)
        if not self.stages:
            raise UserError("stages must name one")
        for name, stage in self.stages.items():
            if not _NAME.fullmatch(f"${name}"):
                raise UserError(f"stages: {name!r} must be letters, numbers and hyphens")
            if name in self.data:
                raise UserError(f"stages.{name} is also the name of a data set: give one of them another")
            if (kind := stage.get("kind", name)) not in KINDS:
                raise UserError(f"stages.{name}.kind is {kind!r}, but must be one of {', '.join(KINDS)}")


@dataclass(frozen=True)
class Planned:
    """A stage that is ready to run.

    Attributes:
        stage: its options, with names replaced by paths.
        options: the options as written, by dotted key, without those that do not change the result.
        inputs: keys of the stages, models and data that it reads, by name.
    """

    name: str
    kind: str
    stage: Stage
    options: Mapping[str, Any]
    inputs: Mapping[str, str]

    @property
    def key(self) -> str:
        """Return a hash of everything that the result depends on."""
        facts = [self.kind, dict(self.options), dict(self.inputs)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:20]


def train(
    recipe: StagedRecipe,
    out: Path,
    restart: bool = False,
    without: Sequence[str] = (),
    say: Callable[[str], None] = print,
    source: str = "the recipe",
) -> Path | None:
    """Run the unfinished stages of a recipe, in order.

    A killed run resumes where it was. A stage is repeated, together with the stages that read its result, if its
    options or the contents of its inputs have changed.

    Args:
        out: folder of the run: the model in ``model``, the result of each stage in ``stages/NAME``.
        restart: repeat all stages.
        without: stages to leave out. Stages that refer to one of them get the model it started from, if any.
        say: called with a line when a stage is done.
        source: name of the recipe, for messages.

    Returns:
        The model folder; None if no stage makes one.

    Raises:
        UserError: before anything starts, if an option, data set or model is wrong or missing, or ``out`` has files
            that no run has written; or what a stage raises.
        KeyboardInterrupt: with a line that says where it stopped.
    """
    plans = plan(recipe, out, without, source)
    with locked(out):
        if not any((out / STAGES).glob(f"*/{RECORD}")):  # there is no run yet
            recipes.require_own(out, STAGES, MODEL)
        if restart:
            shutil.rmtree(out / STAGES, ignore_errors=True)
        write_text(out / "recipe.yaml", recipes.to_yaml(dataclasses.asdict(recipe)))
        facts: dict[str, dict[str, Any]] = {}
        for number, planned in enumerate(plans, 1):
            facts[planned.name] = _bring_up_to_date(planned, out, f"[{number}/{len(plans)}] ", facts, recipe, say)
        made = [planned for planned in plans if planned.stage.MODEL_OF]
        if not made:
            return None
        with explain_full_disk(out / MODEL):
            copy_model(made[-1].stage.output(out / STAGES / made[-1].name), out / MODEL)
        return out / MODEL


def plan(recipe: StagedRecipe, out: Path, without: Sequence[str], source: str) -> list[Planned]:
    """Check all stages of a recipe and their data; return those that are not left out.

    ``UserError`` names the first problem; options are checked before data.
    """
    if unknown := [name for name in without if name not in recipe.stages]:
        raise UserError(f"--without {unknown[0]}: the stages of {source} are {', '.join(recipe.stages)}")
    plans, read = list[Planned](), Reader()
    chosen = list(_stages(recipe, out, without, source))
    places = {str(stage.output(out / STAGES / name)) for name, _, stage, _ in chosen}
    for name, kind, stage, written in tracked("checking the stages", chosen):
        named, everything = _names(written), isinstance(stage, Card)
        inputs = {planned.name: planned.key for planned in plans if everything or f"${planned.name}" in named}
        try:
            inputs |= {model: model_digest(model) for model in stage.models() if model not in places}
            stage.check(read)
            inputs |= {_title(data, recipe.data): digest for data, digest in stage.digests(read)}
        except UserError as error:
            raise UserError(f"{source}: stage {name}: {error}") from error
        flat = {key: value for key, value in options.flatten(written).items() if not key.startswith(stage.UNKEYED)}
        plans.append(Planned(name, kind, stage, flat | {"seed": stage.seed}, inputs))
    return plans


def _stages(
    recipe: StagedRecipe, out: Path, without: Sequence[str], source: str
) -> Iterator[tuple[str, str, Stage, dict[str, Any]]]:
    """Yield name, kind and options of each stage: with paths, and as written."""
    trees = {name: dict(tree) for name, tree in recipe.stages.items()}
    kinds = {name: str(tree.pop("kind", name)) for name, tree in trees.items()}
    instead = {name: _changed_by(tree, kinds[name]) for name, tree in trees.items()}
    places, trunk, branch = dict[str, str](), dict[str, Any](), ""
    dropped = any(KINDS[kinds[name]] in EYES for name in without)
    for name, tree in trees.items():
        if name in without:
            continue
        kind = KINDS[kinds[name]]
        written = _rewrite(tree, partial(_found, user=name, instead=instead, before=places, without=without))
        _require(name, options.flatten(tree), options.flatten(written), source)
        if issubclass(kind, Train):
            _complete(written, trunk, branch if kind not in EYES else "", dropped)
        concrete = _rewrite(written, partial(_place, places={**recipe.data, **places}, source=source))
        stage = options.from_dict(kind, concrete, source, f"stages.{name}.")
        if isinstance(stage, Start):
            trunk = (Bundle.read(stage.model).trunk.to_dict() if stage.model else {}) | stage.trunk
        if (option := EYES.get(kind)) is not None:
            trunk, branch = trunk | option, f"${name}"
        places[name] = str(stage.output(out / STAGES / name))
        yield (
            name,
            kinds[name],
            dataclasses.replace(stage, seed=recipe.seed if stage.seed is None else stage.seed),
            written,
        )


def _require(name: str, asked: Mapping[str, Any], left: Mapping[str, Any], source: str) -> None:
    """Refuse a stage that needs one that is left out."""
    for key, value in asked.items():
        gone = left.get(key) is None if isinstance(value, str) else isinstance(value, list) and value and not left[key]
        if gone and key != "training.start":
            named = value if isinstance(value, str) else ", ".join(map(str, value))
            raise UserError(f"{source}: stage {name} needs {named} ({key}): leave it out too, --without {name}")


def _complete(tree: dict[str, Any], trunk: Mapping[str, Any], branch: str, dropped: bool) -> None:
    """Set the recipe's trunk, and an earlier stage's branch or tower, in a training stage.

    Also remove the use of a branch or tower that is left out.
    """
    model = dict(tree.get("model") or {})
    if dropped:
        model.pop("branch", None)
    if trunk:
        tree["model"] = {**model, "trunk": {**trunk, **(model.get("trunk") or {})}}
    if branch:
        tree["training"] = {**(tree.get("training") or {}), "branch": branch}


# Names in stages


def _names(value: Any) -> set[str]:
    """Return the names in the strings of a tree, with their dollar signs."""
    found: set[str] = set()

    def note(text: str) -> str:
        found.update(match[0] for match in _NAME.finditer(text))
        return text

    _rewrite(value, note)
    return found


def _rewrite(value: Any, change: Callable[[str], str | None]) -> Any:
    """Return the tree with its strings changed, keys too; what becomes None is dropped of lists and keys.

    If two keys become one, as when a stage is left out, their numbers are added.
    """
    if isinstance(value, Mapping):
        changed: dict[Any, Any] = {}
        for key, item in value.items():
            if (new := _rewrite(key, change)) is not None:
                made = _rewrite(item, change)
                changed[new] = changed[new] + made if new in changed else made
        return changed
    if isinstance(value, list | tuple):
        return [new for item in value if (new := _rewrite(item, change)) is not None or item is None]
    return change(value) if isinstance(value, str) else value


def _found(
    text: str, user: str, instead: Mapping[str, str | None], before: Container[str], without: Sequence[str]
) -> str | None:
    """Resolve a stage's name: one that is left out becomes the model it changes; None if it changes none."""
    match = _NAME.fullmatch(text)
    if match is None or (name := match[1]) not in instead or name in before:
        return text
    if name not in without:
        raise UserError(f"stages.{user} names {text}, which must come before it")
    other = instead[name]
    return None if other is None else _found(other, user, instead, before, without)


def _changed_by(stage: Mapping[str, Any], kind: str) -> str | None:
    """Return the model that a stage changes, as written; None if it makes one of its own."""
    option = KINDS[kind].CONTINUES
    value = options.flatten(stage).get(option) if option else None
    return value if isinstance(value, str) else None


def _place(text: str, places: Mapping[str, str], source: str) -> str:
    """Return the text with names replaced by paths."""

    def place(match: re.Match[str]) -> str:
        if match[1] not in places:
            raise UserError(f"{source}: {text} names neither a data set nor a stage; known are {', '.join(places)}")
        return places[match[1]]

    return _NAME.sub(place, text)


def _title(source: DataSet, data: Mapping[str, str]) -> str:
    """Return the name of a data set and its split as in the recipe, so that its location does not matter."""
    root, split = source.root, source.split or "train"
    for name, place in data.items():
        if root == place or root.startswith(f"{place}/"):
            return f"${name}{root.removeprefix(place)} {split}"
    return f"{root} {split}"


# Inputs of stages


def model_digest(name: str) -> str:
    """Return a hash of the model files that training reads; ``UserError`` if there is no such model."""
    folder = Bundle.read(name).folder
    if folder.parent == BUNDLED:
        return name  # a new version of saywhere is no reason to start over
    digest = hashlib.blake2b(digest_size=8)
    for file in (CONFIG, VOCABULARY, WEIGHTS, INFORMATION):
        digest.update((folder / file).read_bytes() if (folder / file).is_file() else b"")
    return digest.hexdigest()


# Running


def _bring_up_to_date(
    planned: Planned, out: Path, title: str, facts: Mapping[str, Any], recipe: StagedRecipe, say: Callable[[str], None]
) -> dict[str, Any]:
    """Run a stage unless it is done; return its results for the card."""
    folder = out / STAGES / planned.name
    record = read_record(folder / RECORD)
    reason = _difference(record, planned) if record else None
    if record and reason is None and record.get("done") and planned.stage.output(folder).exists():
        for line in record.get("left_out", ()):
            leave_out(line)
        say(f"{title}{planned.name}: done before, {record['summary']}")
        return record["facts"]
    resumed = bool(record) and reason is None and not record.get("done")
    if not resumed:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    begun = {"key": planned.key, "kind": planned.kind, "options": dict(planned.options), "inputs": dict(planned.inputs)}
    _write(folder / RECORD, {**begun, "done": False})
    why = f"anew, {reason}" if reason else "resumed" if resumed else "begun"
    print(f"{title}{planned.name}: {why}", file=sys.stderr, flush=True)
    start = time.monotonic()
    asked = dataclasses.replace(recipe, data={name: Path(place).name for name, place in recipe.data.items()})
    work = Work(planned.name, folder, planned.stage.seed or 0, facts, dataclasses.asdict(asked))
    with collect_left_out() as lines:
        before = len(lines)
        made = _run(planned, work)
        left_out = [*lines][before:]
    seconds = round(time.monotonic() - start, 1)
    known = {"kind": planned.kind, "seconds": seconds, **made.facts}
    made_of = {**begun, "left_out": left_out, "done": True}
    _write(folder / RECORD, {**made_of, "summary": made.summary, "facts": known})
    shutil.rmtree(work.cache, ignore_errors=True)
    say(f"{title}{planned.name}: {f'{why}; ' if reason else ''}done in {seconds:.0f} s, {made.summary}")
    return known


def _run(planned: Planned, work: Work) -> Done:
    try:
        with explain_full_disk(work.folder):
            return planned.stage.run(work)
    except KeyboardInterrupt:
        stopped = f"stopped in the stage {planned.name}; run it again to continue there"
        raise KeyboardInterrupt(stopped) from None
    except UserError as error:
        raise UserError(f"stage {planned.name}: {error}") from error


def _difference(record: Mapping[str, Any], planned: Planned) -> str | None:
    """Return why a stage must be repeated; None if nothing changed."""
    if record.get("key") == planned.key:
        return None
    now = json.loads(json.dumps(dict(planned.options), default=str))
    before = record.get("options", {})
    for key in {**before, **now}:
        if before.get(key) != now.get(key):
            return f"{key} is {now.get(key)} and was {before.get(key)}"
    before, now = record.get("inputs", {}), dict(planned.inputs)
    for name in {**before, **now}:
        if before.get(name) != now.get(name):
            return f"{name} is another than before"
    return f"its kind is {planned.kind} and was {record.get('kind')}"


def _write(path: Path, record: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(record, indent=1, default=str) + "\n")


def load(path: str | Path, tree: Mapping[str, Any], without: Sequence[str] = ()) -> StagedRecipe:
    """Return a recipe of stages from the keys of its file; ``UserError`` if it is wrong.

    Data that only the stages ``without`` read needs no place.
    """
    data, stages = tree.get("data") or {}, tree.get("stages") or {}
    if not isinstance(data, Mapping) or not isinstance(stages, Mapping):
        return options.from_dict(StagedRecipe, tree, source=str(path))  # says what is wrong
    every = _names(stages)
    for name in data:
        if f"${name}" not in every:
            near = get_close_matches(name, [other for other in data if f"${other}" in every], n=1, cutoff=0.5)
            meant = f"; did you mean data.{near[0]}?" if near else ""
            raise UserError(f"{path}: data.{name}: no stage reads ${name}{meant}")
    named = _names({name: stage for name, stage in stages.items() if name not in without} if without else stages)
    for name, root in data.items():
        if root is None and (f"${name}" in named or not without):
            raise UserError(f"{path}: say where the data set {name} is: data.{name}=PATH")
    known = {name: root for name, root in data.items() if root is not None}
    return options.from_dict(StagedRecipe, {**tree, "data": known}, source=str(path))
