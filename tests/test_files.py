from __future__ import annotations

import errno

import pytest

from saywhere.files import atomic_path, write_atomically, write_text


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
