"""``saywhere train-classes``: teach everyday kinds to a classifier of regions."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli.options import Device, Seed


def train_classes(
    data: list[Path] = typer.Option(
        ..., "--data", metavar="ROOT|FILE", help="A data set with boxes and phrases; may be repeated."
    ),
    out: Path = typer.Option(..., metavar="FOLDER", help="Folder of the trained part, for saywhere export."),
    model: str = typer.Option(
        DEFAULT_MODEL, help="An exported model: its trunk, and its dense captioner if it has one, make the features."
    ),
    split: str = typer.Option("train", help="Split of the data sets."),
    epochs: int = typer.Option(8, min=1, metavar="N", help="Passes over the boxes."),
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Teach a classifier of regions the kinds that boxes are called, beside ImageNet's published classifier.

    The nouns of the boxes' phrases say of what kind they are. A tenth of the images is held out to make probabilities
    right. The part is added to a model by saywhere export.
    """
    from saywhere import data as datasets
    from saywhere.configs.nouns import NounsConfig
    from saywhere.loading import load
    from saywhere.networks import checkpoint
    from saywhere.training import nouns

    read = [datasets.read(root, split=split) for root in data]
    samples = [sample for part in read for sample in part]
    maker = load(model, device, engine="onnx")
    config = NounsConfig(embed_dim=0 if maker.densecap is None else maker.densecap.config.embed_dim)
    boxes = nouns.collect(maker, samples, config)
    network = nouns.fit(boxes, model, config, epochs, seed)
    sources = " and ".join(f"{part.name}, split {part.split}" for part in read)
    description = f"{len(network.vocabulary.counts)} kinds and ImageNet's classes of regions"
    card = f"# nouns\n\n{description}; {len(boxes.nouns):,} boxes of {len(samples):,} images of {sources}\n"
    checkpoint.save({"nouns": network}, out, card, description)
    typer.echo(f"written: {out}, {len(network.vocabulary.counts)} kinds from {len(boxes.nouns):,} boxes")
    typer.echo(f"next: saywhere export CHECKPOINT... {out} --out FOLDER")
