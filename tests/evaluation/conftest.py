"""What tests of evaluation share. Starting Java takes seconds, so each program of METEOR is started once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flickr_entities import write_flickr

from saywhere.errors import UserError
from saywhere.evaluation.meteor import Meteor
from saywhere.evaluation.ptb import find_java


@pytest.fixture(scope="session")
def flickr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Flickr8k with Flickr30k Entities; nobody is to change it."""
    return write_flickr(tmp_path_factory.mktemp("data") / "flickr8k")


@pytest.fixture(scope="session")
def java() -> str:
    try:
        return find_java()
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def real() -> Meteor:
    """Ours; no score is kept, so each is computed."""
    try:
        return Meteor(cache=0)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def java_on_path(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """pycocoevalcap's own classes take the ``java`` on the PATH, where there may be none."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / Path(java).name).symlink_to(java)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="session")
def theirs(java_on_path: None) -> Any:
    """pycocoevalcap's."""
    return pytest.importorskip("pycocoevalcap.meteor.meteor", reason="needs the extra evaluate").Meteor()
