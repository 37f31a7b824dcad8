"""What only reproduces a published program or table, looked up by the option or command that asks for it.

Nothing outside :mod:`saywhere.papers` imports that package: whoever finds one of these values among a user's options
calls :func:`find`, which imports the one module that it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

PLACES = {
    "command=papers": "commands",
    "conventions=original": "densecap2016.network:OriginalConventions",
    "backbone=vgg16_caffe": "densecap2016.network:build_caffe_vgg16",
    "config=region-rnn": "table1.config:RegionRnnConfig",
    "network=region-rnn": "table1.region_rnn:RegionRnn",
    "parses=FILE": "relations:read_parses",
    "encoder=relations": "relations:RelationEncoder",
    "task=retrieval": "retrieval:run",
    "kind=original_adam": "densecap2016.conventions:Adam",
    "protocol=original": "densecap2016.evaluator:ORIGINAL",
}
"""For each option with its value the module of :mod:`saywhere.papers`, and a name in it if not all of it is meant."""


def values(option: str) -> list[str]:
    """Return the values of an option that are looked up here."""
    return [place.partition("=")[2] for place in PLACES if place.startswith(f"{option}=")]


def find(option: str) -> Any:
    """Return what an option of :data:`PLACES` asks for: a module, or a function, class or object in it."""
    place, _, name = PLACES[option].partition(":")
    module = import_module(f"saywhere.papers.{place}")
    return getattr(module, name) if name else module
