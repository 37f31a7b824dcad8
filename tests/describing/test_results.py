from __future__ import annotations

import errno
import json
import os

import pytest
import torch

from saywhere.describing.results import ResultsFile
from saywhere.errors import UserError
from saywhere.regions import Regions


def made(number: int) -> Regions:
    box = torch.tensor([[0.0, 1.0, 10.0 + number, 20.25]])
    return Regions(100, 50, box, torch.tensor([0.5]), (f"caption {number}",))


def test_lines_have_the_documented_form(tmp_path):
    with ResultsFile(tmp_path / "new" / "r.jsonl") as lines:
        lines.append(made(0), "é a.jpg")
        text = (tmp_path / "new" / "r.jsonl").read_text(encoding="utf-8")  # before it is closed
    assert text.count("\n") == 1 and "é" in text
    assert json.loads(text) == {
        "image": "é a.jpg",
        "width": 100,
        "height": 50,
        "boxes": [[0.0, 1.0, 10.0, 20.25]],
        "scores": [0.5],
        "captions": ["caption 0"],
    }


def test_a_file_is_gone_on_with(tmp_path):
    file = tmp_path / "r.jsonl"
    with ResultsFile(file) as lines:
        lines.append(made(0), "a")
        lines.append(made(1), "b")
    with ResultsFile(file) as lines:
        assert lines.done == {"a", "b"}
        lines.append(made(2), "c")
        assert [regions.captions for regions in lines] == [("caption 0",), ("caption 1",), ("caption 2",)]
        assert lines["b"].boxes.tolist() == made(1).boxes.tolist() and lines["b"].image == "b"
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("cut", range(1, 100, 7))
def test_a_torn_last_line_is_cut_off(tmp_path, cut):
    file = tmp_path / "r.jsonl"
    with ResultsFile(file) as lines:
        lines.append(made(0), "a")
        whole = file.read_bytes()
        lines.append(made(1), "b")
    file.write_bytes(file.read_bytes()[: len(whole) + cut])
    with ResultsFile(file) as lines:
        assert lines.done == {"a"}
        assert file.read_bytes() == whole
        lines.append(made(1), "b")
    with ResultsFile(file) as lines:
        assert lines.done == {"a", "b"}


def test_a_whole_last_line_without_its_end_is_kept(tmp_path):
    file = tmp_path / "r.jsonl"
    with ResultsFile(file) as lines:
        lines.append(made(0), "a")
    file.write_bytes(file.read_bytes().rstrip(b"\n"))
    with ResultsFile(file) as lines:
        lines.append(made(1), "b")
    with ResultsFile(file) as lines:
        assert lines.done == {"a", "b"}
        assert lines["b"].captions == ("caption 1",)


def test_another_file_is_not_written_to(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("my diary\nday one\n")
    with pytest.raises(UserError, match="line 1 is not a result of saywhere"):
        ResultsFile(file)
    assert file.read_text() == "my diary\nday one\n"
    file.write_text("one line without an end")
    with pytest.raises(UserError, match="line 1 is not a result of saywhere"):
        ResultsFile(file)
    assert file.read_text() == "one line without an end"
    with pytest.raises(UserError, match="cannot be written"):
        ResultsFile(tmp_path)
    with pytest.raises(UserError, match="cannot be written"):
        ResultsFile(file / "below.jsonl")


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    file = tmp_path / "r.jsonl"
    real = os.write
    room = [300]

    def write(handle: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = real(handle, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", write)
    with ResultsFile(file) as lines:
        with pytest.raises(OSError) as caught:
            for number in range(9):
                lines.append(made(number), f"{number}")
        assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(file)
        kept = len(file.read_text().splitlines())
        assert kept == len(lines) >= 2 and file.read_bytes().endswith(b"\n")
        room[0] = 10_000
        lines.append(made(kept), f"{kept}")
    assert [json.loads(line)["image"] for line in file.read_text().splitlines()] == [str(i) for i in range(kept + 1)]


def test_names_that_are_not_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    with ResultsFile(tmp_path / "r.jsonl") as lines:
        lines.append(made(0), name)
    with ResultsFile(tmp_path / "r.jsonl") as lines:
        assert lines.done == {name}
