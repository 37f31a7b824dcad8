"""Settings of all tests, and which of them run where PyTorch is not installed."""

from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from extras import needs_extras
from hypothesis import settings

# A first call may import torch's parts for seconds, so an example's time says nothing.
settings.register_profile("saywhere", deadline=None, max_examples=60, derandomize="CI" in os.environ)
settings.load_profile("saywhere")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell starts what it leaves in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.set_threshold(20_000, 20, 20)  # modules and tests are many objects, and looking through them often takes a twentieth
os.fsync = os.fstat  # no test needs the disk itself: those about waiting for it look at the calls
FOLDER = Path(__file__).parent
CORE_ONLY = importlib.util.find_spec("torch") is None
"""Only what ``pip install saywhere`` brings is installed, as in ``make test-core``."""


def pytest_configure(config: pytest.Config) -> None:
    """Give all processes of a run one folder for what is made once (``made_once.py``)."""
    if not hasattr(config, "workerinput"):
        os.environ["SAYWHERE_TESTS_SHARED"] = tempfile.mkdtemp(prefix="saywhere-tests-")


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove it."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ["SAYWHERE_TESTS_SHARED"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the stages: a fixture of theirs takes minutes, for which other processes would wait at the end."""
    items.sort(key=lambda item: "stages" not in item.path.parts)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out what needs an extra that is not installed, and what is about the repository and not the program."""
    if not CORE_ONLY:
        return None
    if (settings_file := collection_path / "conftest.py").is_file() and collection_path != FOLDER:
        return True if needs_extras(settings_file) else None
    if collection_path.suffix != ".py":
        return None
    about_the_repository = collection_path.name in ("test_house.py", "test_documents.py", "test_benchmark_versions.py")
    return True if about_the_repository or needs_extras(collection_path) else None


@pytest.fixture(scope="session")
def aligner(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model that is a tiny aligner; nobody is to change it."""
    from tiny_aligner import tiny_aligner

    from saywhere.networks import checkpoint

    return str(checkpoint.save(tiny_aligner(), tmp_path_factory.mktemp("aligner")))


@pytest.fixture(scope="module")
def plain_curves() -> Iterator[None]:
    """Let training copy its log in place of drawing curves from it, which takes longer than a tiny network's epoch."""
    from saywhere.files import write_atomically
    from saywhere.training import loop

    def copy(log: Path, image: Path) -> None:
        write_atomically(image, lambda stream: stream.write(log.read_bytes()))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loop, "draw_curves", copy)
        yield


@pytest.fixture(autouse=CORE_ONLY, scope="session")
def no_network() -> None:
    """Let no test of the core open a connection."""

    def refuse(*arguments: object, **named: object) -> None:
        raise AssertionError(f"a connection was opened: {arguments}")

    socket.socket.connect = refuse
    socket.create_connection = refuse
    socket.getaddrinfo = refuse
    os.environ["HF_HUB_OFFLINE"] = "1"
