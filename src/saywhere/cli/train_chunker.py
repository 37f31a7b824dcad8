"""``saywhere train-chunker``: learn to cut sentences into phrases."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import Seed


def train_chunker(
    data: list[Path] = typer.Option(
        ..., "--data", metavar="ROOT|FILE", help="Flickr8k or Flickr30k with Entities, or a text file; may be repeated."
    ),
    out: Path = typer.Option(..., metavar="FILE", help="The weights are written here (.npz)."),
    split: str = typer.Option("train", help="Split of a data set."),
    epochs: int = typer.Option(3, min=1, metavar="N", help="Passes over the sentences."),
    seed: Seed = 0,
) -> None:
    """Train the tagger that cuts sentences into phrases, on sentences with the markup of Flickr30k Entities.

    A text file has a marked sentence a line, "id TAB sentence"; it may be gzipped.
    """
    from saywhere.errors import UserError
    from saywhere.training import chunker

    if out.suffix != ".npz":
        raise UserError(f"--out {out}: the weights are written as .npz")
    read = [chunker.read_text(each) if each.is_file() else chunker.read_split(each, split) for each in data]
    sentences = [sentence for part in read for sentence in part]
    chunker.train(sentences, epochs, seed).save(out)
    typer.echo(f"written: {out}, from {len(sentences):,} sentences")
