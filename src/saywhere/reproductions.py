"""Lookup of code that only reproduces a published program or table, by the option or command that needs it.

No code outside :mod:`saywhere.papers` imports that package. Code that meets one of these values in a user's options
calls :func:`find`, which imports just the module that is needed.
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
"""Location in :mod:`saywhere.papers` of each option value: a module, or a name in a module."""


def values(option: str) -> list[str]:
    """Return the values of an option that are registered here."""
    return [place.partition("=")[2] for place in PLACES if place.startswith(f"{option}=")]


def find(option: str) -> Any:
    """Import and return what an option of :data:`PLACES` stands for: a module, or an object in one."""
    place, _, name = PLACES[option].partition(":")
    module = import_module(f"saywhere.papers.{place}")
    return getattr(module, name) if name else module
