"""``saywhere serve``, or another server of it, in a process of its own, where PyTorch cannot be imported."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from saywhere.serve.limits import Limits

START = f"""
import sys
sys.modules["torch"] = None
sys.path.append({str(Path(__file__).parent)!r})
from server_process import be_patient
be_patient()
from saywhere.cli import main
main()
"""


def be_patient() -> None:
    """Give servers of this process ten minutes for what they have one for, so that no answer depends on the load."""
    patient = ("upload_seconds", "answer_seconds", "reading_seconds", "stop_seconds")
    Limits.__init__.__defaults__ = tuple(600.0 if f.name in patient else f.default for f in fields(Limits))


class Process:
    """A running ``saywhere serve``, or ``saywhere mcp`` over HTTP."""

    def __init__(self, *options: str, command: str = "serve") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, command, "--port", "0", *options],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith("serving "), self.process.communicate()
        self.url = next(word for word in line.split() if word.startswith("http")).rstrip("/")
        self.port = urlsplit(self.url).port or 0

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM; the exit code and what stands on stderr."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=600)
        return self.process.returncode, errors

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Stop it, which it does without a word."""
        ended = self.stop()
        assert kind is not None or ended == (0, "")

    @property
    def peak(self) -> int:
        """The most bytes that were resident so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def refuse_huge(self, path: str, text: bytes, token: str = "s3cret") -> Iterator[tuple[int, dict[str, Any]]]:
        """Send JSON that begins with ``text`` and goes on for 100 MB, which a head announces, and in chunks.

        Yields:
            The status and the JSON of each answer.
        """
        piece, head = b"A" * (1 << 20), {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        pieces = [text, *[piece] * 100]
        for more in ({"Content-Length": str(sum(map(len, pieces)))}, {}):
            connection = HTTPConnection("127.0.0.1", self.port, timeout=600)
            connection.request("POST", path, iter(pieces), head | more)
            response = connection.getresponse()
            yield response.status, json.loads(response.read())
            connection.close()


def send_raw(port: int, data: bytes) -> bytes:
    """Return all that a server answers to bytes, until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
        connection.sendall(data)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received
