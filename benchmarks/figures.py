"""Measure the figures of README.md, keep them in ``results``, and write them into the documents.

    python benchmarks/figures.py measure [NAME ...] [--data DATA]
    python benchmarks/figures.py write

``measure`` runs the named commands of :data:`MEASUREMENTS` (without a name: those that need no data set, like ``make
figures``), and keeps their figures, with command, date and machine, in ``results/NAME.json``. Then, like ``write``, it
updates the numbers in the sentences of :data:`STATEMENTS` and the tables between ``<!-- NAME -->`` and
``<!-- /NAME -->``. A missing sentence is an error: whoever rewords it must reword it here too.
``tests/test_documents.py`` checks that ``write`` would change nothing.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import shlex
import string
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from saywhere.files import write_text

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
README, BENCHMARKS = "README.md", "benchmarks/README.md"

Results = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """A command, the function that reads figures from its report, and whether it needs the data sets of ``--data``."""

    command: str
    figures: Callable[[Any], dict[str, float]]
    data: bool = False


def of_startup(report: Any) -> dict[str, float]:
    """Return the largest median of the commands, in seconds and MB."""
    rows = report["medians"].values()
    return {
        f"{what}_{engine}": max(row[engine][column] for row in rows)
        for engine in ("onnx", "torch")
        for what, column in (("seconds", 0), ("mb", 2))
    }


def of_describe(report: Any) -> dict[str, float]:
    """Return images a second and core in the largest batches, and ratios of processor time."""
    rows = report["configurations"]
    ratios = {(row["what"], row["batch"]): row["median"] for row in report["ratios"]}
    least, most = min(row["batch"] for row in rows), max(row["batch"] for row in rows)
    rates = {row["subject"]: row["images_a_second_and_core"] for row in rows if row["batch"] == most}
    return {
        "size": rows[0]["size"],
        "batch": most,
        "rate": rates["onnx"],
        "rate_int8": rates["int8"],
        "trunk": ratios["torch / onnx, trunk", least],
        "trunk_int8": ratios["torch / int8, trunk", least],
        "trunk_batch": ratios["torch / onnx, trunk", most],
        "trunk_int8_batch": ratios["torch / int8, trunk", most],
        "torch": ratios["torch / onnx, describe", least],
        "torch_int8": ratios["torch / int8, describe", least],
        "peer": ratios["peer / onnx, describe", least],
    }


def of_size(report: Any) -> dict[str, float]:
    """Return the MB of the installed core, of its sources and of the weights, and the GB of everything."""
    core, sources = report["core"].values()
    return {"core": core, "sources": sources, "weights": report["weights"], "everything": report["everything"] / 1000}


def of_nouns(report: Any) -> dict[str, float]:
    """Return right nouns in percent: of all objects, and as the mean over kinds."""
    return {name: 100 * report[name]["decoder"] for name in ("objects", "kinds")}


def picked(**paths: str) -> Callable[[Any], dict[str, float]]:
    """Return a function that reads figures from a report by their paths, such as ``presence/auc``."""

    def pick(report: Any, path: str) -> float:
        for name in path.split("/"):
            report = report[name]
        return report

    return lambda report: {name: pick(report, path) for name, path in paths.items()}


EVALUATE = "saywhere evaluate {} --data data/{} --split {}"
MEASUREMENTS = {
    "startup": Measurement("python benchmarks/startup.py --rounds 5", of_startup),
    "describe": Measurement(
        "python benchmarks/describe.py --engines onnx int8 torch --size 416 --batch 1 8 --repeats 3 --images 8",
        of_describe,
    ),
    "size": Measurement("python benchmarks/size.py", of_size),
    "dense": Measurement(
        EVALUATE.format("dense", "flickr8k", "dev"),
        picked(map="map", boxes="detection_map", meteor="language_meteor", calibration="calibration/ece"),
        data=True,
    ),
    "ground": Measurement(
        EVALUATE.format("ground", "flickr8k", "dev") + " --limit 500",
        picked(
            accuracy="accuracy",
            largest="controls/largest region/accuracy",
            auc="presence/auc",
            calibration="presence/boxes/ece",
        ),
        data=True,
    ),
    "aligner": Measurement(
        EVALUATE.format("ground --part aligner", "flickr8k", "dev"),
        picked(accuracy="accuracy", prior="controls/highest prior/accuracy", whole="controls/whole image/accuracy"),
        data=True,
    ),
    "aligner-alone": Measurement(
        EVALUATE.format("ground --part aligner", "flickr8k", "dev") + " --set grounding.similarity_kind_weight=0",
        picked(accuracy="accuracy"),
        data=True,
    ),
    "rank": Measurement(
        EVALUATE.format("rank", "flickr8k", "dev"), picked(text="image_to_text/r1", image="text_to_image/r1"), data=True
    ),
    "caption": Measurement(
        EVALUATE.format("caption", "flickr8k", "dev"),
        picked(**{f"bleu_{n}": f"bleu_{n}" for n in range(1, 5)}, meteor="meteor", cider="cider"),
        data=True,
    ),
    "nouns": Measurement(EVALUATE.format("nouns", "wider/coco.jsonl", "val"), of_nouns, data=True),
}
STATEMENTS = {
    README: (
        "{startup.seconds_onnx:.2f} s instead of {startup.seconds_torch:.0f}",
        "at most {startup.mb_onnx:.0f} MB of memory instead of {startup.mb_torch:,.0f}",
        "{describe.rate:.0f} images a second on one core, or {describe.rate_int8:.0f} in int8",
        "{size.core:.0f} MB on the disk",
        "has {size.weights:.0f} MB of weights",
        "about {size.everything:.1f} GB on Linux",
        "mAP {dense.map:.3f}; boxes alone {dense.boxes:.3f}; METEOR of the phrases alone {dense.meteor:.3f}",
        "{ground.accuracy:.3f}; the largest region {ground.largest:.3f}; whether a phrase is there at all: AUC "
        "{ground.auc:.3f}",
        "{aligner.accuracy:.3f}; without the noun classifier {aligner-alone.accuracy:.3f}, without reading the "
        "words {aligner.prior:.3f}, the whole image {aligner.whole:.3f}",
        "of images for a sentence | {rank.text:.3f}, {rank.image:.3f}",
        "{caption.bleu_1:.3f}, {caption.bleu_2:.3f}, {caption.bleu_3:.3f}, {caption.bleu_4:.3f}; {caption.meteor:.3f}; "
        "{caption.cider:.3f}",
        "with an expected calibration error (ECE) of {dense.calibration:.3f}",
        "with an ECE of {ground.calibration:.3f}",
        "the right thing for {nouns.objects:.0f} % of the objects of COCO, and for {nouns.kinds:.0f} % of its kinds",
    ),
    BENCHMARKS: (
        "the trunk is {describe.trunk:.1f} times as fast with ONNX Runtime as with eager torch, and in int8 "
        "{describe.trunk_int8:.1f} times; in batches {describe.trunk_batch:.1f} and {describe.trunk_int8_batch:.1f} "
        "times",
        "`describe` is {describe.torch:.1f} times as fast with the engine `onnx` as with `torch`, "
        "{describe.torch_int8:.1f} times with int8, and the peer, which has no captions, takes "
        "{describe.peer:.1f} times as long as `onnx`",
    ),
}
"""Of each document the sentences with figures, once each; ``{NAME.FIGURE:FORMAT}`` is a figure of a result."""
NUMBER = r"(\d[\d,]*(?:\.\d+)?)"


def load() -> Results:
    """Return the last results by name."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def said(sentence: str, results: Results) -> str:
    """Return a sentence of :data:`STATEMENTS` with the figures of the results."""
    return sentence.format(**{name: SimpleNamespace(**result["figures"]) for name, result in results.items()})


def fields(sentence: str) -> list[tuple[str, str]]:
    """Return the figures of a sentence: the name of the result, and the field as it is written."""
    parsed = [(field, form) for _, field, form, _ in string.Formatter().parse(sentence) if field]
    return [(field.partition(".")[0], f"{{{field}:{form}}}") for field, form in parsed]


def place(sentence: str, text: str) -> re.Match[str]:
    """Return the match of a sentence in a document, with any line breaks; its numbers are the groups.

    Raises:
        SystemExit: it is missing, or there several times.
    """
    parsed = string.Formatter().parse(sentence)
    pattern = "".join(re.escape(literal) + (NUMBER if field else "") for literal, field, *_ in parsed)
    found = list(re.finditer(re.sub(r"(\\ )+", r"\\s+", pattern), text))
    if len(found) != 1:
        raise SystemExit(f"error: a document has this {len(found)} times, and should have it once: {sentence}")
    return found[0]


def tables(results: Results) -> dict[str, list[str]]:
    """Return the contents between the marks of ``benchmarks/README.md``, by name."""
    lines = [f"| statement in {README} | command | date |", "|---|---|---|"]
    for sentence in STATEMENTS[README]:
        used = [results[name] for name in dict.fromkeys(name for name, _ in fields(sentence))]
        cells = (dict.fromkeys(result[what] for result in used) for what in ("command", "date"))
        commands, dates = cells
        text = said(sentence, results).replace(" | ", ": ")
        lines.append(f"| {text} | {', '.join(f'`{command}`' for command in commands)} | {', '.join(dates)} |")
    found = {"figures": lines}
    for name, result in results.items():
        if "table" in result:
            found[name] = [f"`{result['command']}`, {result['date']}, {result['machine']}:", "", *result["table"]]
    return found


def rewritten(document: str, text: str, results: Results) -> str:
    """Return the text of a document with the figures of the results.

    Raises:
        SystemExit: a sentence or a mark is not there, or several times.
    """
    for sentence in STATEMENTS.get(document, ()):
        found = place(sentence, text)
        for number, (_, field) in reversed(list(enumerate(fields(sentence), 1))):
            text = text[: found.start(number)] + said(field, results) + text[found.end(number) :]
    for name, lines in tables(results).items() if document == BENCHMARKS else ():
        block = "\n".join([f"<!-- {name} -->", "", *lines, "", f"<!-- /{name} -->"])
        text, count = re.subn(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, new=block: new, text, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"error: {document} should have <!-- {name} --> and <!-- /{name} --> once each")
    return text


def write(results: Results) -> None:
    """Write the figures into the documents."""
    for document in STATEMENTS:
        path = ROOT / document
        text = path.read_text(encoding="utf-8")
        if (new := rewritten(document, text, results)) != text:
            write_text(path, new)
            print(f"written: {document}")


def machine() -> str:
    """Return a description of the machine and its load."""
    info = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)$", info.read_text(), re.MULTILINE) if info.is_file() else []
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    state = "idle" if load < cores / 4 else f"busy (load {load:.1f})"
    return f"{(names or [platform.processor()])[0]}, {cores} cores, {state}"


def measure(name: str, measurement: Measurement, data: Path) -> None:
    """Run a command and keep its figures.

    Raises:
        SystemExit: it fails.
    """
    found: dict[str, Any] = {"command": measurement.command, "date": str(datetime.date.today()), "machine": machine()}
    print(f"{name}: {measurement.command}", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        words = [re.sub("^data/", f"{data}/", word) for word in shlex.split(measurement.command)]
        program = {"python": [sys.executable], "saywhere": [sys.executable, "-m", "saywhere"]}[words[0]]
        where = ["--out", temporary] if measurement.data else ["--json", f"{temporary}/report.json"]
        done = subprocess.run([*program, *words[1:], *where], cwd=ROOT)
        if done.returncode:
            raise SystemExit(f"error: {name} failed with exit code {done.returncode}")
        report = json.loads(Path(temporary, "report.json").read_text(encoding="utf-8"))
    found["figures"] = {figure: float(f"{value:.4g}") for figure, value in measurement.figures(report).items()}
    if "table" in report:
        found["table"] = report["table"]
    write_text(RESULTS / f"{name}.json", json.dumps(found, indent=1) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """Measure and write, or only write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tasks = parser.add_subparsers(dest="task", required=True)
    tasks.add_parser("write")
    measuring = tasks.add_parser("measure")
    measuring.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    measuring.add_argument("--data", type=Path, default=Path("data"), help="folder with flickr8k and wider")
    options = parser.parse_args(arguments)
    if options.task == "measure":
        names = options.names or [name for name, measurement in MEASUREMENTS.items() if not measurement.data]
        if unknown := [name for name in names if name not in MEASUREMENTS]:
            parser.error(f"no measurement {', '.join(unknown)}; there are {', '.join(MEASUREMENTS)}")
        for name in names:
            measure(name, MEASUREMENTS[name], options.data.resolve())
    write(load())


if __name__ == "__main__":
    main()
