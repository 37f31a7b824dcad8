"""Plot the quality of captions against the number of regions (Areas of Attention, Figure 4).

    python benchmarks/number_of_areas.py --model M [M ...] --data ROOT [--option grid] [--values 2 3 4 6 8 10]
                                         [--split dev] [--limit N] [--metric cider] [--out number-of-areas]

Runs ``saywhere evaluate caption --set OPTION=VALUE`` for each model and value, each in a folder of its own below
``--out``, so that an interrupted run resumes; then writes ``number-of-areas.png`` and ``.json`` there. See
README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

PROPOSALS = "proposals.post_nms_top_n"
Curves = dict[str, dict[int, float]]
"""By model, by value of the option, the figure."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Plot the quality of captions against the number of regions.")
    parser.add_argument("--model", nargs="+", required=True, help="names or folders of captioners with attention")
    parser.add_argument("--data", required=True, help="folder of the data set")
    parser.add_argument("--option", default="grid", choices=("grid", PROPOSALS), help="option that sets the number")
    parser.add_argument("--values", type=int, nargs="+", default=[2, 3, 4, 6, 8, 10], help="values of the option")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--limit", type=int, help="only the first images")
    parser.add_argument("--metric", default="cider", choices=("cider", "bleu_4", "meteor", "rouge_l"))
    parser.add_argument("--out", type=Path, default=Path("number-of-areas"))
    return parser.parse_args(arguments)


def evaluate(options: argparse.Namespace, model: str, value: int, out: Path) -> float:
    """Return the figure of one model with one number of regions."""
    command = ["evaluate", "caption", "--model", model, "--data", options.data, "--split", options.split]
    command += ["--set", f"{options.option}={value}", "--out", str(out)]
    command += ["--limit", str(options.limit)] if options.limit else []
    program = "from saywhere.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", program, *command])
    if done.returncode:
        raise SystemExit(f"error: saywhere {' '.join(command)} ended with {done.returncode}")
    return float(json.loads((out / "report.json").read_text())[options.metric])


def collect(options: argparse.Namespace, figure: Callable[[argparse.Namespace, str, int, Path], float]) -> Curves:
    """Return the figures of all models and values; a model's folder is its place in the list."""
    return {
        model: {value: figure(options, model, value, options.out / f"{number}-{value}") for value in options.values}
        for number, model in enumerate(options.model)
    }


def draw(curves: Curves, option: str, metric: str, path: Path) -> None:
    """Draw a line for each model over the number of regions: the square of ``grid``, or the proposals as they are."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    for model, values in curves.items():
        counts = [value**2 if option == "grid" else value for value in values]
        axes.plot(counts, list(values.values()), marker="o", label=model)
    axes.set_xlabel("regions of an image")
    axes.set_ylabel(metric)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, draw, write."""
    options = parse()
    curves = collect(options, evaluate)
    options.out.mkdir(parents=True, exist_ok=True)
    row = {"option": options.option, "metric": options.metric, "split": options.split, "curves": curves}
    (options.out / "number-of-areas.json").write_text(json.dumps(row, indent=2) + "\n")
    draw(curves, options.option, options.metric, options.out / "number-of-areas.png")
    for model, values in curves.items():
        print(model, *(f"{options.option} {value}: {figure:.4f}" for value, figure in values.items()), sep="\n  ")


if __name__ == "__main__":
    main()
