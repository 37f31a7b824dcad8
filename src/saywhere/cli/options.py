"""Option declarations that several commands share."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

from saywhere.errors import UserError
from saywhere.loading import DeferredModel, Runtime, load_model

if TYPE_CHECKING:
    import saywhere
    from saywhere.search import Qdrant

OPTION = inspect.Parameter.KEYWORD_ONLY
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME|DIR",
        help="Model name or folder, or hub:OWNER/NAME.",
        show_default="the bundled model",
    ),
]
ComparedModels = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        metavar="NAME|DIR",
        help="Model name or folder, or hub:OWNER/NAME; repeat to compare models.",
        show_default="the bundled model",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="D",
        help="Engine onnx: cpu, cuda, coreml, directml or openvino. Engine torch: cpu, cuda, mps, ...",
        show_default="cpu; with the engine torch the first GPU, if any",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="E",
        help="onnx (needs no PyTorch) or torch.",
        show_default="onnx if the model supports it and --device does not need torch",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        min=1,
        max=1024,
        metavar="N",
        help="Number of CPU threads.",
        show_default="all available processors",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="P",
        help="float32, or int8: faster, with slightly different answers, on the engine onnx, for the bundled model and "
        "models exported with --int8. ONNX models of the hub also have fp16, q4 and others.",
        show_default="float32",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="OPTION=VALUE",
        help="Override a model option, such as decoding.beam_size=3; may be repeated.",
    ),
]


class Chosen(NamedTuple):
    """The model of a command and its runtime: one parameter that :func:`ungroup` expands into options."""

    model: Model = None
    device: Device = None
    engine: Engine = None
    threads: Threads = None
    precision: Precision = None
    change: Set = None

    def deferred(
        self, part: str | None = None, ahead: Sequence[str] = (), paths: Sequence[str] | None = None
    ) -> DeferredModel:
        """Return the model, to be loaded at its first use; arguments as in :class:`saywhere.loading.DeferredModel`.

        If all ``paths`` are files, loading starts at once, in a thread, while the rest of the program is imported.
        """
        model = DeferredModel(self.model, Runtime(*self[1:5]), self.change, part, ahead)
        if paths and all(map(os.path.isfile, paths)):
            with contextlib.suppress(UserError):  # raised again at the first use
                model.begin()
        return model

    def load(self, name: str) -> saywhere.Model:
        """Load a model with an aligner, for :class:`saywhere.Index`."""
        return load_model(name, Runtime(*self[1:5]), self.change, "aligner")


def ungroup(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with its :class:`Chosen` parameter, if any, replaced by an option for each field."""
    given = list(inspect.signature(command, eval_str=True).parameters.values())
    name = next((each.name for each in given if each.annotation is Chosen), None)
    if name is None:
        return command

    def called(**values: Any) -> None:
        chosen = Chosen(*(values.pop(field) for field in Chosen._fields))
        command(**values, **{name: chosen})

    fields = options_of(Chosen)
    return declare(called, command, [new for old in given for new in (fields if old.name == name else [old])])


def options_of(group: Any, kinds: Mapping[str, Any] | None = None, **defaults: Any) -> list[inspect.Parameter]:
    """Return an option for each field of a named tuple; ``kinds`` and ``defaults`` replace those of the fields."""
    kinds = {**get_type_hints(group, include_extras=True), **(kinds or {})}
    defaults = {**dict.fromkeys(kinds, inspect.Parameter.empty), **group._field_defaults, **defaults}
    return [inspect.Parameter(name, OPTION, default=defaults[name], annotation=kinds[name]) for name in group._fields]


def declare(
    called: Callable[..., None], command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Give ``called`` the name and help of ``command`` and a signature with ``parameters`` as options; return it."""
    functools.update_wrapper(called, command)
    called.__dict__["__signature__"] = inspect.Signature([each.replace(kind=OPTION) for each in parameters])
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    return called


Host = Annotated[str, typer.Option("--host", metavar="HOST", help="Address to listen on; 0.0.0.0 means all.")]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="T",
        envvar="SAYWHERE_TOKEN",
        show_envvar=True,
        help="Answer only requests with this token.",
    ),
]
AllowedHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allowed-host",
        metavar="NAME",
        show_default="any name with a token, otherwise this machine's addresses",
        help="Accept requests addressed to this host name; may be repeated; * accepts any.",
    ),
]
Batch = Annotated[int, typer.Option("--batch", min=1, metavar="N", help="Images per batch.")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N images.", show_default="all")
]
Regions = Annotated[
    int | None,
    typer.Option(
        "--regions", min=1, metavar="N", show_default="the model's",
        help="Maximum number of regions per image; the aligner adds the whole image.",
    ),
]  # fmt: skip
BeamSize = Annotated[
    int | None,
    typer.Option(
        "--beam-size", min=1, max=1000, metavar="N", show_default="the model's", help="Beam size; 1: greedy decoding."
    ),
]
LeastProbability = Annotated[
    float | None,
    typer.Option(
        "--least-probability",
        min=0,
        max=1,
        metavar="P",
        show_default="the model's",
        help="End sentences before parts whose words are less probable: larger is shorter and more often right.",
    ),
]
Beta = Annotated[
    float | None,
    typer.Option(
        "--beta", min=0, metavar="B", show_default="the model's", help="Smoothness weight β of Eq. 12; 0: word by word."
    ),
]
PATHS = "Images, folders, tar archives, or quoted patterns: 'a/*.jpg'; @FILE lists one path per line (@-: stdin)."
Images = Annotated[list[str], typer.Argument(metavar="PATH...", help=PATHS)]
ShardCount = Annotated[
    int | None,
    typer.Option(
        "--shards", min=1, max=99_999, metavar="N",
        help="Split the images into N shards, for several processes that run this command at the same time.",
    ),
]  # fmt: skip
DataRoot = Annotated[
    Path | None, typer.Option("--data", metavar="ROOT", help="Folder of the data set, or a .jsonl file.")
]
DataFormat = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="flickr8k (also Flickr30k), visual-genome, coco, jsonl, label-studio, cvat or xmp.",
        show_default="guessed from the files",
    ),
]
Split = Annotated[str | None, typer.Option("--split", help="Split of the data set.", show_default="dev")]
Splits = Annotated[
    list[str] | None, typer.Option("--split", help="Split to read; may be repeated.", show_default="all splits")
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, metavar="N", help="Random seed.")]

FILES = (".json", ".jsonl", ".csv", ".xml", ".txt", ".zip", ".mp4", ".mov", ".pdf", ".html", ".md", ".svg")
"""File extensions that a folder is never given, besides those of images."""
STDOUT = Path("-")
"""Results file name that means: print the lines."""


class ResultFormat(StrEnum):
    """Names in :data:`saywhere.formats.registry.FORMATS`, which is imported only when a command runs."""

    saywhere = "saywhere"
    coco = "coco"
    coco_results = "coco-results"
    label_studio = "label-studio"
    cvat = "cvat"
    fiftyone = "fiftyone"
    yolo = "yolo"
    voc = "voc"
    csv = "csv"
    parquet = "parquet"
    xmp = "xmp"
    xmp_names = "xmp-names"


OutputFormat = Annotated[
    ResultFormat,
    typer.Option(
        "--output-format",
        metavar="F",
        help="Write results into --out in this format instead of drawings (xmp: also beside the images); formats: see "
        "convert-results --to.",
    ),
]

ClassNames = Annotated[
    str | None,
    typer.Option(
        "--classes",
        metavar="NAMES",
        help="Only regions of these classes, such as person,dog, and of their kinds: a boy is a person.",
    ),
]
ClassMap = Annotated[
    str | None,
    typer.Option("--map", metavar="coco80", help="Only regions of COCO's 80 classes, with COCO's class numbers."),
]


CopyImages = Annotated[
    bool, typer.Option("--copy-images", help="Format yolo: also copy the images, and list them in data.yaml.")
]


def check_sentence_format(name: str | None) -> str | None:
    """Return the format of sentences; raise :class:`UserError` if it is one of regions."""
    if name not in (None, "xmp"):
        raise UserError(
            f"--output-format {name}: sentences can only be written as xmp; or write them with --json FILE, which "
            f"convert-results FILE --to {name} turns into regions of whole images"
        )
    return name


SentenceFormat = Annotated[
    str | None,
    typer.Option(
        "--output-format", metavar="F", help="xmp: write each sentence into a sidecar beside its image.",
        callback=check_sentence_format,
    ),
]  # fmt: skip


Embed = Annotated[
    bool, typer.Option("--embed", help="Write XMP into JPEG, PNG and WebP files with ExifTool; others get a sidecar.")
]


class Part(StrEnum):
    """The parts of a model that place phrases."""

    aligner = "aligner"
    densecap = "densecap"


class Protocol(StrEnum):
    """How answers are scored: by the paper's definition, or as the original program does."""

    clean = "clean"
    original = "original"


def check_file(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """Return the path of a results file, refusing a folder or the name of an image; for an option's callback."""
    if path is not None and path.is_dir():
        printed = ", or - to print the lines" if option.name == "json" else ""
        raise UserError(f"{option.opts[0]} {path}: is a folder; give the name of a file{printed}")
    if path is not None and _names_image(path):
        raise UserError(f"{option.opts[0]} {path}: is the name of an image; give another, such as results.jsonl")
    return path


def _names_image(path: Path) -> bool:
    """Return whether the name of a file ends like that of an image."""
    if not path.suffix:
        return False
    from saywhere.images import SUFFIXES

    return path.suffix.lower() in SUFFIXES


def check_folder(option: typer.CallbackParam, path: Path | None) -> Path | None:
    """Return the path of a folder, refusing a file or a file name; for the callback of an option or argument."""
    if path is not None:
        require_folder(option.opts[0], path)
    return path


def require_folder(option: str, path: Path) -> None:
    """Refuse a file, or a file name, where a folder is expected; the error names ``option``."""
    if not path.is_dir() and ((image := _names_image(path)) or path.suffix.lower() in FILES or path.exists()):
        kind = "an image" if image else "a file"
        raise UserError(f"{option} {path}: is the name of {kind}; give the name of a folder")


def read_texts(words: Sequence[str], way_out: str) -> list[str]:
    """Return the texts among command-line arguments; arguments without spaces are joined, as if quoted together.

    Raises:
        UserError: an argument is an image file, and the error ends with ``way_out``; or one of several names nothing.
    """
    import shlex

    from saywhere.images import SUFFIXES
    from saywhere.models.layout import require_names

    for text in words:
        if Path(text).suffix.lower() in SUFFIXES and os.path.isfile(text):
            raise UserError(f"{text}: is an image, but a text is expected here; {way_out}")
    whole = " ".join(words)
    if len(words) == 1 or all(len(text.split()) == 1 for text in words):
        return [whole]
    try:
        require_names(words)
    except UserError as error:
        raise UserError(f"{error}; if all of it is one text, put it in quotes: {shlex.quote(whole)}") from None
    return [*words]


Drawings = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="DIR", callback=check_folder, help="Folder for drawings: images with boxes and phrases."
    ),
]
Json = Annotated[
    Path | None,
    typer.Option(
        "--json", metavar="FILE", callback=check_file,
        help="Append results to FILE as JSON lines, skipping images that it already has; - prints them.",
    ),
]  # fmt: skip


Out = Annotated[Path, typer.Option("--out", metavar="DIR", callback=check_folder, help="Folder for the report.")]


IndexFolder = Annotated[
    Path | None,
    typer.Option("--index", metavar="DIR", callback=check_folder, help="Folder of the index.", show_default=False),
]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="URL of a Qdrant server with the index; QDRANT_API_KEY has its key."),
]
Collection = Annotated[
    str | None,
    typer.Option("--collection", metavar="NAME", help="Name of the collection in Qdrant.", show_default="saywhere"),
]


def find_place(folder: Path | None, url: str | None, collection: str | None) -> Path | Qdrant:
    """Return the location of an index for :class:`saywhere.Index`; raise :class:`UserError` if options conflict."""
    if url is None:
        if collection is not None:
            raise UserError("--collection is for an index in Qdrant: give --url as well")
        if folder is None:
            raise UserError("--index DIR is missing: give the folder of the index, or --url URL of a Qdrant server")
        return folder
    if folder is not None:
        raise UserError("--index and --url both say where the index is: give one of them")
    if url == ":memory:":
        raise UserError("--url :memory: would be gone when this command ends; give --index DIR or the URL of a server")
    from saywhere.search import Qdrant

    return Qdrant(url, collection or Qdrant.collection)
