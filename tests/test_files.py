from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from saywhere.files import LONGEST_NAME, atomic_path, beside, fit_name, fits, put_in_place, write_atomically, write_text


def test_files_are_whole_or_not_there(tmp_path):
    path = tmp_path / "deep" / "a.bin"
    write_atomically(path, lambda stream: stream.write(b"one"))

    def fail(stream) -> None:
        stream.write(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError) as caught:
        write_atomically(path, fail)
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"one"
    assert [file.name for file in path.parent.iterdir()] == ["a.bin"]


def test_text_is_utf8_with_its_own_line_ends(tmp_path):
    write_text(tmp_path / "a.txt", "caf\u00e9\r\n")
    assert (tmp_path / "a.txt").read_bytes() == b"caf\xc3\xa9\r\n"


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_path(path) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert [file.read_text() for file in tmp_path.iterdir()] == ["old"]
    with atomic_path(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert [file.read_text() for file in tmp_path.iterdir()] == ["new"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no terminals in its file system")
def test_a_device_is_written_to_and_stays() -> None:
    reads, writes = os.openpty()
    try:
        device = Path(os.ttyname(writes))
        write_text(device, "told")
        assert device.is_char_device() and os.read(reads, 10) == b"told"
    finally:
        os.close(reads)
        os.close(writes)


def test_a_link_stays_and_the_file_that_it_leads_to_keeps_its_mode(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "a.txt").write_text("old")
    (tmp_path / "real" / "a.txt").chmod(0o640)
    (tmp_path / "a.txt").symlink_to("real/a.txt")
    write_text(tmp_path / "a.txt", "new")
    assert (tmp_path / "a.txt").is_symlink() and (tmp_path / "real" / "a.txt").read_text() == "new"
    assert (tmp_path / "real" / "a.txt").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "a.txt", "real"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs locks of files")
@pytest.mark.parametrize("folder", [False, True])
def test_of_two_that_write_the_same_one_waits_for_the_other(tmp_path, folder):
    """Otherwise what one has written half would get the name, or be taken away by the other."""
    path, first, begun = tmp_path / "a", threading.Event(), threading.Event()

    def fill(part: Path, text: str) -> None:
        (part / "b" if folder else part).write_text(text)

    def write_second() -> None:
        begun.set()
        with atomic_path(path, folder) as part:
            assert first.is_set() and not (list(part.iterdir()) if folder else part.read_text())
            fill(part, "second")
            if folder:
                shutil.rmtree(path)

    with ThreadPoolExecutor(1) as pool:
        with atomic_path(path, folder) as part:
            waiting = pool.submit(write_second)
            begun.wait()
            fill(part, "first")
            first.set()
        waiting.result()
    assert (path / "b" if folder else path).read_text() == "second"
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is waited for, by name as it was then, and what is renamed."""
    found: list[str] = []
    fsync, replace = os.fsync, os.replace

    def waited(file: int) -> None:
        found.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)
        fsync(file)

    def renamed(old: Path, new: Path) -> None:
        found.append(f"renamed to {Path(new).name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", waited)
    monkeypatch.setattr(os, "replace", renamed)
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells the names of open files")
def test_the_bytes_are_on_the_disk_before_the_name_and_then_the_name(tmp_path, log):
    write_text(tmp_path / "a.txt", "text")
    part, *rest = log
    assert part.endswith(".part") and rest == ["renamed to a.txt", tmp_path.name]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="only Linux tells the names of open files")
def test_what_is_in_a_new_folder_is_waited_for_once(tmp_path, log):
    with atomic_path(tmp_path / "folder", folder=True) as part:
        write_text(part / "deep" / "a.txt", "text")
        (part / "b.txt").write_text("text")
        assert log == ["renamed to a.txt"]
    assert sorted(log[1:4]) == ["a.txt", "b.txt", "deep"]
    assert log[4:] == [part.name, "renamed to folder", tmp_path.name]
    assert (tmp_path / "folder" / "deep" / "a.txt").read_text() == "text"


def test_a_folder_that_cannot_be_read_and_a_disk_that_cannot_wait_are_no_errors(tmp_path, monkeypatch):
    def refuse(_: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    write_text(tmp_path / "a.txt", "text")
    (tmp_path / "b.txt").write_text("more")
    put_in_place(tmp_path / "b.txt", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text() == "more"


@pytest.mark.parametrize("letter", ["x", "\u4e16", "\udcff"])
def test_a_name_may_be_as_long_as_the_file_system_lets_it(tmp_path, letter):
    longest = letter * (LONGEST_NAME // len(os.fsencode(letter)))
    write_text(tmp_path / longest, "text")
    assert [path.name for path in tmp_path.iterdir()] == [longest]
    assert not fits(write_text, tmp_path / f"{longest}y", "text") and len(list(tmp_path.iterdir())) == 1
    assert fits(write_text, tmp_path / "short", "text")
    note = beside(tmp_path / longest, ".{}.note")
    note.write_text("of the longest")
    assert note.name != beside(tmp_path / longest[1:], ".{}.note").name
    assert beside(tmp_path / "a", ".{}.note") == tmp_path / ".a.note"
    (tmp_path / fit_name(longest, "-3s.jpg")).write_text("drawn")
    assert fit_name(longest, "-3s.jpg").endswith(f"{letter}-3s.jpg") and fit_name("a", ".jpg") == "a.jpg"
