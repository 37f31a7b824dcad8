from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from PIL import Image
from refusals import refuses

from saywhere.errors import UserError
from saywhere.images import LoadedImage, open_image, resized
from saywhere.inference import ImageResult, Outputs, ResultsFile, Source, ensure_same_settings, find_images
from saywhere.regions import Regions
from saywhere.video.results import Places, TracksFile
from tests import photographs


def made(number: int) -> Regions:
    return Regions(100, 50, [[0.0, 1.0, 10.0 + number, 20.25]], [0.5], (f"caption {number}",))


def store(file: Path, *names: str) -> bytes:
    """Append a result for each name; what the file has then."""
    with ResultsFile(file) as lines:
        for name in names:
            lines.append(made(len(lines)).to_dict(), name)
    return file.read_bytes()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "r.jsonl"


def stored(file: Path) -> set[str]:
    with ResultsFile(file) as lines:
        return set(lines.done)


def test_lines_have_the_documented_form(tmp_path):
    with ResultsFile(tmp_path / "new" / "r.jsonl") as lines:
        lines.append(made(0).to_dict(), "é a.jpg")
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


def test_a_file_is_resumed(file):
    store(file, "a", "b")
    with ResultsFile(file) as lines:
        assert lines.done == {"a", "b"}
        lines.append(made(2).to_dict(), "c")
        assert [row["captions"] for row in lines] == [["caption 0"], ["caption 1"], ["caption 2"]]
        assert lines.regions("b").boxes.tolist() == made(1).boxes.tolist()
        assert lines.regions("b").image == "b" and lines["b"] == made(1).to_dict() | {"image": "b"}
    assert len(file.read_text().splitlines()) == 3


@pytest.mark.parametrize("torn", [*range(1, 100, 7), b'{"image": "4"', b""])
def test_a_torn_last_line_and_zeros_that_a_power_cut_has_left_are_cut_off(file, torn):
    whole = store(file, "a")
    whole_and_more = store(file, "b")
    file.write_bytes(whole_and_more[: len(whole) + torn] if isinstance(torn, int) else whole + torn + bytes(300))
    assert stored(file) == {"a"} and file.read_bytes() == whole
    store(file, "b")
    assert stored(file) == {"a", "b"}


def test_a_whole_last_line_without_its_end_is_kept(file):
    file.write_bytes(store(file, "a").rstrip(b"\n"))
    store(file, "b")
    with ResultsFile(file) as lines:
        assert lines.done == {"a", "b"}
        assert lines.regions("b").captions == ("caption 1",)


def test_another_file_is_not_written_to(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("my diary\nday one\n")
    refuses("line 1 is not a result with boxes", ResultsFile, file)
    assert file.read_text() == "my diary\nday one\n"
    file.write_text("one line without an end")
    refuses("line 1 is not a result with boxes", ResultsFile, file)
    assert file.read_text() == "one line without an end"
    refuses("cannot be written", ResultsFile, tmp_path)
    refuses("cannot be written", ResultsFile, file / "below.jsonl")


def test_a_full_disk_leaves_whole_lines(file, monkeypatch):
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
                lines.append(made(number).to_dict(), f"{number}")
        assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(file)
        kept = len(file.read_text().splitlines())
        assert kept == len(lines) >= 2 and file.read_bytes().endswith(b"\n")
        room[0] = 10_000
        lines.append(made(kept).to_dict(), f"{kept}")
    assert [json.loads(line)["image"] for line in file.read_text().splitlines()] == [str(i) for i in range(kept + 1)]


@pytest.mark.skipif(os.name == "nt", reason="there, open files cannot be removed")
def test_a_file_that_is_removed_meanwhile_is_an_error(tmp_path):
    """What is written to it is lost, and a run must not end as if it were not."""
    with ResultsFile(tmp_path / "r.jsonl") as lines:
        lines.append(made(0).to_dict(), "a")
        (tmp_path / "r.jsonl").unlink()
        refuses("r.jsonl: was removed while this run wrote to it", lines.append, made(1).to_dict(), "b")
    with TracksFile(Places(tmp_path / "t.jsonl"), "a.mp4", {}) as tracks:
        tracks.append([{"track": 1}])
        (tmp_path / "t.jsonl").unlink()
        refuses("t.jsonl: was removed", tracks.finish)


def test_names_that_are_not_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9.jpg")
    store(tmp_path / "r.jsonl", name)
    assert stored(tmp_path / "r.jsonl") == {name}


def test_rows_of_any_kind(tmp_path):
    """A row has the image's name and what the file is of; a file of another kind is not written to."""
    file = tmp_path / "captions.jsonl"
    with ResultsFile(file, "caption") as lines:
        lines.append({"width": 3, "height": 2, "caption": "a dog"}, "a.jpg")
        with pytest.raises(ValueError, match=r"b.jpg has no caption"):
            lines.append({"width": 3}, "b.jpg")
        refuses(r"the result for a.jpg cannot be used \(.*boxes", lines.regions, "a.jpg")
    assert file.read_text() == '{"image": "a.jpg", "width": 3, "height": 2, "caption": "a dog"}\n'
    with ResultsFile(file, "caption") as lines:
        assert lines.done == {"a.jpg"} and lines["a.jpg"]["caption"] == "a dog"
    refuses("line 1 is not a result with boxes; give another file", ResultsFile, file)


def test_results_begun_with_other_settings_are_refused(tmp_path):
    path, settings = tmp_path / "r.jsonl", {"model": "a", "top": 10, "set": None}
    path.touch()
    ensure_same_settings(path, {"model": "b"})  # nothing came of it
    ensure_same_settings(path, settings)
    store(path, "a.jpg")
    ensure_same_settings(path, settings)
    with pytest.raises(
        UserError, match=r"was started with other options \(top: 10, now 5; set: not set, now x=1\); give"
    ):
        ensure_same_settings(path, {"model": "a", "top": 5, "set": ["x=1"]})
    path.unlink()
    ensure_same_settings(path, {"model": "a", "top": 5})  # a pipe, or nothing: no note of it
    path.touch()
    ensure_same_settings(path, {"model": "a", "top": 5})
    assert json.loads((tmp_path / ".r.jsonl.settings.json").read_text()) == {"model": "a", "top": 5}


def test_settings_are_those_of_the_file_that_a_link_leads_to(tmp_path):
    link, path = tmp_path / "link.jsonl", tmp_path / "disk" / "r.jsonl"
    path.parent.mkdir()
    link.symlink_to(path)
    with ResultsFile(link) as lines:
        ensure_same_settings(link, {"top": 5})
        lines.append(made(0).to_dict(), "a.jpg")
    for name in (link, path):
        refuses(r"jsonl: was started with other options \(top: 5, now 6\)", ensure_same_settings, name, {"top": 6})


def test_a_run_whose_settings_do_not_fit_on_the_disk_is_not_begun(file, monkeypatch):
    file.touch()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        ensure_same_settings(file, {"top": 5})


@pytest.mark.parametrize("note", [None, "{", "[1]"])
def test_results_of_unknown_settings_are_taken_as_they_are(file, tmp_path, note):
    store(file, "a.jpg")
    if note is not None:
        (tmp_path / ".r.jsonl.settings.json").write_text(note)
    ensure_same_settings(file, {"top": 5})
    ensure_same_settings(file, {"top": 6})


def test_lines_are_on_the_disk_when_the_file_is_closed(file, monkeypatch):
    """They are waited for together, once, and only if there are new ones."""
    fsync, waited = os.fsync, list[int]()
    monkeypatch.setattr(os, "fsync", lambda file: waited.append(os.fstat(file).st_size) or fsync(file))
    with ResultsFile(file) as lines:
        for number in range(5):
            lines.append(made(number).to_dict(), f"{number}")
        assert waited == []
    assert waited == [file.stat().st_size]
    with ResultsFile(file) as lines:
        assert len(lines) == 5
    assert len(waited) == 1


def test_the_settings_of_a_file_with_a_long_name_are_noted(tmp_path):
    path = tmp_path / ("r" * 255)
    path.touch()
    ensure_same_settings(path, {"model": "a"})
    store(path, "a.jpg")
    refuses(r"was started with other options \(model: a, now b\)", ensure_same_settings, path, {"model": "b"})


def result(source: Source) -> ImageResult[Regions]:
    image = open_image(source.path)
    return ImageResult(source, Regions(image.width, image.height, [[0, 0, 30, 20]], [0.5], ("a thing",)), image)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    photographs.quarters(100, 60).save(tmp_path / "a.png")
    return find_images([tmp_path / "a.png"])[0]


def test_an_image_of_a_line_that_lacks_it_is_written_from_the_line(tmp_path: Path, source: Source):
    folder = tmp_path / "out"
    with ResultsFile(tmp_path / "r.jsonl") as lines:
        outputs = Outputs(lines, folder)
        assert outputs.long_side == 1600 and not outputs.lacks_image(source)
        outputs.keep(result(source))
        drawn = (folder / "a.png").read_bytes()
        (folder / "a.png").unlink()
        assert outputs.lacks_image(source)
        for one in outputs.read_back([source]):
            outputs.keep(one)
        assert (folder / "a.png").read_bytes() == drawn and len(lines) == 1
        assert (tmp_path / "r.jsonl").read_text().count("\n") == 1


def test_nothing_is_drawn_on_an_image_that_has_vanished_or_has_another_size_than_in_the_line(
    tmp_path: Path, source: Source
):
    with ResultsFile(tmp_path / "r.jsonl") as lines:
        outputs = Outputs(lines, tmp_path / "out")
        outputs.keep(result(source))
        source.path.unlink()
        assert [(one.result, one.error) for one in outputs.read_back([source])] == [(None, "no such file")]
        Image.new("RGB", (70, 90)).save(source.path)
        reason = "is 70 x 90 now, and was 100 x 60 when it was described"
        assert [(one.result, one.error) for one in outputs.read_back([source])] == [(None, reason)]


def test_outputs_without_a_file_have_no_answers(source: Source):
    with pytest.raises(ValueError, match="no file of results"):
        Outputs().answer(source)


def test_originals_are_not_written_over(tmp_path: Path, source: Source):
    refuses("would be overwritten", Outputs(None, tmp_path).check, [source])
    refuses("cannot be made a folder", Outputs(None, source.path).check, [source])


def test_drawn_images_have_a_long_side_within_bounds():
    for size, expected in (((100, 50), (80, 40)), ((10, 5), (40, 20)), ((60, 30), (60, 30)), ((500, 1), (80, 1))):
        image = LoadedImage(Image.new("RGB", size), *size)
        assert resized(image, 40, 80).size == expected
