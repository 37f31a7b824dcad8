"""``saywhere describe`` on videos: tracks and times, the files, kills, damage, folders and cameras."""

from __future__ import annotations

import errno
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest
from commands import error_of, rows, run
from PIL import Image
from refusals import refuses
from stubs import load_by
from video_clips import TURNS, SquareModel, Timed, damage, moving, plate, set_matrix, write_clip

import saywhere
from saywhere.files import TOO_LONG, part_of
from saywhere.video import writing
from saywhere.video.tracking import LOOKS_A_PART

FILES = ("clip.mp4", "clip.tracks.jsonl", "clip.vtt")


@pytest.fixture
def model(monkeypatch, tmp_path) -> SquareModel:
    stub = SquareModel()
    load_by(monkeypatch, lambda *_, **__: stub)
    monkeypatch.chdir(tmp_path)
    return stub


describe = partial(run, "describe")


def listed(folder: str) -> list[str]:
    """What is in a folder, without the notes of the options that results were made with."""
    return sorted(name for name in os.listdir(folder) if not name.endswith(".settings.json"))


def two_scenes() -> list[Timed]:
    """Two seconds by day with a red and a blue square, and one by night with a green one."""
    night = (Timed(2 + n / 10, plate(20, {"green": (20 + 4 * n, 40)})) for n in range(10))
    return [*moving(2), *night]


def spans(path: str) -> list[tuple]:
    return [(row["phrase"], row["start"], row["end"]) for row in rows(path) if "track" in row]


def frames(path: str) -> dict[float, np.ndarray]:
    with av.open(path) as file:
        return {round(frame.time, 3): frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)}


def test_tracks_are_printed_if_no_file_is_given(model):
    write_clip(Path("clip.mp4"), two_scenes())
    result = describe("clip.mp4", "--every", "0.2s")
    assert result.stderr == ""
    assert result.stdout.splitlines() == [
        "00:00:00.000  00:00:02.000  0.90  a red square",
        "00:00:00.000  00:00:02.000  0.50  a blue square",
        "00:00:02.000  00:00:03.000  0.90  a green square",
        "clip.mp4: 3 tracks in 2 scenes, 15 looks",
    ]
    assert listed(".") == ["clip.mp4"]


def test_python_users_follow_videos_with_the_rows_and_files_of_the_command(model):
    for name in ("clips/a.mp4", "clips/b.mp4"):
        write_clip(Path(name), two_scenes())
    Path("clips/c.mp4").write_text("no video")
    plate(230, {}).save("clips/d.png")
    describe("clips/a.mp4", "--every", "0.2s", "--json", "a.jsonl")
    seen = []
    done = saywhere.follow("clips/a.mp4", every=0.2, each=seen.append)
    assert (str(done), done.written) == ("1 followed", [])
    assert [{"video": "clips/a.mp4", **row} for row in seen] == rows("a.jsonl")
    for counts in ("2 followed; 1 skipped", "0 followed; 2 already done; 1 skipped"):
        done = saywhere.follow("clips", every="0.2s", out="out")
        assert str(done) == counts and [*done.skipped] == ["clips/c.mp4"]
    describe("clips/a.mp4", "--every", "0.2s", "--top", 0, "--json", "all.jsonl")
    assert saywhere.follow("clips/a.mp4", every=0.2, top=0, json="all.jsonl").already == 1
    refuses(r"every 0: give a time from 1ms to 60m", saywhere.follow, "clips", every=0)
    refuses("^threshold must be a probability, not 2$", saywhere.follow, "clips", threshold=2)


def test_tracks_captions_and_the_annotated_video_are_listed(model):
    write_clip(Path("clip.mp4"), two_scenes())
    result = describe("clip.mp4", "--every", "200ms", "--out", "drawn")
    assert "written: drawn/clip.mp4, drawn/clip.vtt, drawn/clip.tracks.jsonl" in result.stdout
    assert listed("drawn") == sorted(FILES)
    red, blue, day, green, night = rows("drawn/clip.tracks.jsonl")
    assert red["times"] == [round(n / 5, 3) for n in range(10)]
    np.testing.assert_allclose(red["boxes"], [[10 + 4 * n, 10, 50 + 4 * n, 50] for n in range(10)], atol=3)
    assert (blue["phrase"], blue["looks"]) == ("a blue square", 10)
    assert day == {"video": "clip.mp4", "scene": 1, "start": 0.0, "end": 2.0}
    assert (green["track"], green["start"], green["end"]) == (3, 2.0, 3.0)
    assert night == {"video": "clip.mp4", "scene": 2, "start": 2.0, "end": 3.0}
    assert Path("drawn/clip.vtt").read_text() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.000\na red square\na blue square\n"
        "\n00:00:02.000 --> 00:00:03.000\na green square\n"
    )


@pytest.mark.parametrize(
    ("seconds", "every", "lefts"),
    [(2, "0.5s", {0.0: 10, 0.3: 16, 0.7: 24, 1.2: 34}), (4, "3.5s", {3.0: 10, 3.4: 10, 3.5: 80})],
    ids=["near", "far"],
)
def test_the_annotated_video_has_boxes_that_move_along_unless_looks_are_far_apart(model, seconds, every, lefts):
    write_clip(Path("clip.mp4"), moving(seconds))
    describe("clip.mp4", "--every", every, "--out", "drawn")
    plain, drawn = frames("clip.mp4"), frames("drawn/clip.mp4")
    assert list(drawn) == list(plain)
    for time, left in lefts.items():
        changed = np.abs(drawn[time].astype(int) - plain[time]).max(axis=2) > 80
        assert changed[20:50, left : left + 2].mean() > 0.7  # the left edge of the red square's box
        assert changed[90:120, 10:90].mean() < 0.01


def test_phrases_of_boxes_that_overlap_do_not_pile_up_and_stay_where_they_were(monkeypatch):
    drawn, places = list[list[tuple[int, ...]]](), dict[int, int]()
    monkeypatch.setattr(writing, "draw_label", lambda draw, label, place, *rest: drawn[-1].append(place))
    for step in range(3):
        boxes = [(150 + 20 * i + step, 100 + 9 * i, 450 + 20 * i + step, 400 + 9 * i) for i in range(6)]
        marks = [writing.Mark(i, box, f"a man in a shirt number {i}") for i, box in enumerate(boxes)]
        drawn.append([])
        before, places = places, writing.draw_marks(Image.new("RGB", (640, 480)), marks, (640, 480), places)
        assert step == 0 or places == before
        assert len(drawn[-1]) == 6
        for a, b in itertools.combinations(drawn[-1], 2):
            width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
            assert max(width, 0) * max(height, 0) < 0.05 * (a[2] - a[0]) * (a[3] - a[1])


def test_a_variable_rate_and_a_turned_camera(model):
    times = [0, 0.03, 0.9, 1.0, 1.04, 2.6, 2.7, 2.8, 4.0]
    upright = [plate(230, {"red": (20, 10), "blue": (140, 80)}) for _ in times]
    stored = [Timed(t, image.rotate(90, expand=True)) for t, image in zip(times, upright, strict=True)]
    write_clip(Path("clip.mp4"), stored, rotation=-90)
    describe("clip.mp4", "--every", "0.5s", "--json", "tracks.jsonl")
    red, blue, _ = rows("tracks.jsonl")
    assert red["times"] == blue["times"] == [0, 0.9, 1.0, 2.6, 4.0]
    assert (red["start"], red["phrase"], blue["phrase"]) == (0, "a red square", "a blue square")
    assert red["end"] >= 4.0
    np.testing.assert_allclose(red["boxes"], [[20, 10, 60, 50]] * 5, atol=3)
    np.testing.assert_allclose(blue["boxes"], [[140, 80, 180, 120]] * 5, atol=3)


@pytest.mark.parametrize("turn", TURNS)
def test_boxes_and_the_annotated_video_are_as_a_player_shows_it(model, turn):
    matrix, back = TURNS[turn]
    upright = plate(230, {"red": (20, 10), "blue": (140, 80)})
    stored = upright if back is None else upright.transpose(back)
    set_matrix(write_clip(Path("clip.mp4"), [Timed(n / 10, stored) for n in range(10)]), matrix)
    describe("clip.mp4", "--every", "0.2s", "--out", "drawn")
    found = {row["phrase"]: row["boxes"][0] for row in rows("drawn/clip.tracks.jsonl") if "phrase" in row}
    np.testing.assert_allclose(found["a red square"], [20, 10, 60, 50], atol=3)
    np.testing.assert_allclose(found["a blue square"], [140, 80, 180, 120], atol=3)
    drawn = frames("drawn/clip.mp4")[0.5]
    assert drawn.shape == (128, 192, 3)
    for x, y in ((40, 35), (160, 100), (100, 100), (170, 20)):
        assert drawn[y, x].astype(int) == pytest.approx(upright.getpixel((x, y)), abs=25)
    changed = np.abs(drawn.astype(int) - np.asarray(upright)).max(axis=2) > 80
    # the left edge of the red square's box
    assert changed[20:45, 20:22].mean() > 0.7 and changed[95:, :100].mean() < 0.01


ODD = (
    "10:22.mp4",
    "file:plain.mp4",
    "concat:plain.mp4|plain.mp4",
    "-i.mp4",
    "pipe:0.mp4",
    "http:127.0.0.1:{port}?a.mp4",
)
"""Names that FFmpeg takes for protocols, and a command line for options."""


def test_names_that_look_like_something_else_are_those_of_files(model):
    """In a folder, by a pattern, in a list and on the command line; and results are written by them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        names = [name.format(port=listener.getsockname()[1]) for name in ODD]
        write_clip(Path("plain.mp4"), moving(0.5))
        for name in names:
            write_clip(Path("other.mp4"), [Timed(n / 10, plate(230, {"green": (20, 10)})) for n in range(5)]).rename(
                name
            )
        Path("list.txt").write_text("".join(f"{name}\n" for name in names))
        for number, words in enumerate((["@list.txt"], [f"./{name}" for name in names], ["--", *names])):
            describe("--out", f"out{number}", *words)
            for name in names:
                stem = f"out{number}/{name.removesuffix('.mp4')}"
                assert spans(f"{stem}.tracks.jsonl") == [("a green square", 0, 0.5)]
                assert len(frames(f"file:{stem}.mp4")) == 5 and "a green square" in Path(f"{stem}.vtt").read_text()
        Path("plain.mp4").unlink()
        folder = describe(".", "--every", "0.2s", "--json", "10:22.jsonl", "--out", "file:out", code=2)
        assert "can hold the tracks of only one video" in folder.stderr
        describe("*.mp4", "--out", "file:out")
        assert len(listed("file:out")) == 3 * len(names)
        os.mkdir("below")
        describe("./10:22.mp4", "--out", "below/..", "--json", "http:a.jsonl", code=2)
        os.chdir("below")
        describe("../10:22.mp4", "--out", ".", "--json", "10:22.jsonl")
        assert spans("10:22.jsonl") == [("a green square", 0, 0.5)] and len(frames("file:10:22.mp4")) == 5
        with pytest.raises(BlockingIOError):
            listener.accept()


SECONDS = LOOKS_A_PART / 10 * 2.5
"""Of a clip that is looked at ten times a second: two parts are whole, and half of a third."""


def disturbed(stop: int, clip: str = "clip.mp4") -> list[str]:
    """The words of ``describe`` in a process that is killed at a look."""
    script = "\n".join((
        "import os, signal, sys",
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})",
        "import pytest",
        "from saywhere import cli",
        "from stubs import load_by",
        "from video_clips import SquareModel",
        "model = SquareModel()",
        f"model.before = lambda look: look == {stop} and os.kill(os.getpid(), signal.SIGKILL)",
        "load_by(pytest.MonkeyPatch(), lambda *_, **__: model)",
        "cli.main()",
    ))  # fmt: skip
    return [sys.executable, "-c", script, "describe", clip, "--every", "100ms", "--out", "drawn"]


def written(folder: str, clip: str = "clip.mp4") -> dict[str, bytes]:
    """What a run that nothing disturbs writes, or goes on to write, into a folder."""
    describe(clip, "--every", "100ms", "--out", folder)
    return {name: Path(folder, name).read_bytes() for name in listed(folder)}


@pytest.mark.parametrize("stops", [(3,), (2 * LOOKS_A_PART + 5, 4)])
def test_a_killed_run_is_resumed_and_ends_as_an_undisturbed_one(model, stops):
    write_clip(Path("clip.mp4"), moving(SECONDS), every_key=25)
    expected = written("undisturbed")
    for stop in stops:
        done = subprocess.run(disturbed(stop), capture_output=True, text=True, timeout=600)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not Path("drawn/clip.mp4").exists() and not Path("drawn/clip.vtt").exists()
    before = model.looks
    assert written("drawn") == expected
    assert model.looks - before == round(10 * SECONDS) - stops[0] // LOOKS_A_PART * LOOKS_A_PART


def test_ctrl_c_keeps_what_is_done(model):
    write_clip(Path("clip.mp4"), moving(SECONDS))
    expected, first = written("undisturbed"), model.looks
    model.interrupt(first + LOOKS_A_PART + 3)
    result = describe("clip.mp4", "--every", "100ms", "--out", "drawn", code=130)
    assert result.stderr == ("interrupted after 00:00:02.100 of 00:00:05.000 of clip.mp4; run it again to continue\n")
    assert written("drawn") == expected
    assert model.looks == first + LOOKS_A_PART + 3 + round(10 * SECONDS) - LOOKS_A_PART


def test_a_full_disk_is_named_and_the_same_command_goes_on(model, monkeypatch):
    write_clip(Path("clip.mp4"), two_scenes())
    expected = written("undisturbed")
    write = os.write

    def full(file, data):
        write(file, data[:30])
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("saywhere.video.results.os.write", full)
        result = describe("clip.mp4", "--every", "100ms", "--out", "drawn", code=2)
    assert result.stderr.startswith("error: drawn/clip.tracks.jsonl: the disk is full")
    assert Path("drawn/clip.tracks.jsonl").read_bytes() == b""
    assert written("drawn") == expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
@pytest.mark.parametrize("name", [".clip.tracks.jsonl.unfinished/00000.nut", "clip.mp4"])
def test_a_disk_that_is_full_for_the_annotated_video_is_named(model, name):
    write_clip(Path("clip.mp4"), moving(1))
    expected, first = written("undisturbed"), model.looks
    model.interrupt(first + 1)
    describe("clip.mp4", "--every", "100ms", "--out", "drawn", code=130)
    part = part_of(Path("drawn", name))
    part.unlink(missing_ok=True)
    part.symlink_to("/dev/full")
    error = error_of(describe("clip.mp4", "--every", "100ms", "--out", "drawn", code=2))
    assert error.startswith("error: drawn/") and "the disk is full" in error
    assert written("drawn") == expected


def test_what_is_done_is_not_done_again_and_other_options_need_another_place(model):
    write_clip(Path("clip.mp4"), moving(1))
    describe("clip.mp4", "--json", "tracks.jsonl")
    looks, text = model.looks, Path("tracks.jsonl").read_text()
    again = describe("clip.mp4", "--json", "tracks.jsonl")
    assert "already in tracks.jsonl" in again.stdout
    assert (model.looks, Path("tracks.jsonl").read_text()) == (looks, text)
    refused = describe("clip.mp4", "--json", "tracks.jsonl", "--every", "0.1s", "--threshold", 0.4, code=2)
    assert model.looks == looks
    way_out = "; give another place, or remove tracks.jsonl to start over\n"
    assert refused.stderr == f"error: tracks.jsonl: was made with another --every and --threshold{way_out}"
    undrawn = describe("clip.mp4", "--json", "tracks.jsonl", "--out", "drawn", code=2)
    assert "tracks.jsonl: is finished, but drawn/clip.mp4 is not there" in undrawn.stderr
    model.interrupt(model.looks + 1)
    describe("clip.mp4", "--json", "other.jsonl", code=130)
    refused = describe("clip.mp4", "--json", "other.jsonl", "--every", "0.1s", "--top", 3, code=2)
    assert "other.jsonl: was made with another --every and --top; remove other.jsonl and " in refused.stderr


def test_a_video_that_is_another_one_since_costs_only_itself(model):
    for name in ("a.mp4", "b.mp4"):
        write_clip(Path(name), moving(1))
    describe("a.mp4", "b.mp4", "--out", "drawn")
    write_clip(Path("a.mp4"), two_scenes())
    again = describe("a.mp4", "b.mp4", "--out", "drawn", code=1)
    assert again.stdout == "b.mp4: already in drawn/b.tracks.jsonl\n"
    tracks = "drawn/a.tracks.jsonl"
    what = f"is not the video whose tracks are in {tracks}; give another place, or remove {tracks} to start over"
    assert again.stderr == f"skipped: a.mp4: {what}\n"
    Path(tracks).unlink()
    describe("a.mp4", "b.mp4", "--out", "drawn")
    assert spans(tracks)[-1] == ("a green square", 2.0, 3.0)
    describe("a.mp4", "b.mp4", "--out", "drawn")


def test_a_damaged_place_is_reported_and_the_rest_described(model):
    damage(write_clip(Path("clip.mp4"), moving(10)), 0.4, 0.5)
    result = describe("clip.mp4", "--every", "0.2s", "--out", "drawn", code=1)
    assert re.fullmatch(
        r"clip\.mp4: damaged: \d+ frames? could not be read \(second [\d.]+( to [\d.]+)?\)\n", result.stderr
    )
    found = spans("drawn/clip.tracks.jsonl")
    assert {phrase for phrase, _, _ in found} == {"a red square", "a blue square"}
    assert min(start for _, start, _ in found) == 0 and max(end for _, _, end in found) == 10.0
    assert max(frames("drawn/clip.mp4")) == pytest.approx(9.9)


def test_damage_is_counted_once_in_a_run_that_was_interrupted(model):
    damage(write_clip(Path("clip.mp4"), moving(SECONDS)), 0.36, 0.44)
    expected = describe("clip.mp4", "--every", "100ms", "--json", "whole.jsonl", code=1).stderr
    first = model.looks
    model.interrupt(first + LOOKS_A_PART + 1)
    describe("clip.mp4", "--every", "100ms", "--json", "tracks.jsonl", code=130)
    result = describe("clip.mp4", "--every", "100ms", "--json", "tracks.jsonl", code=1)
    assert result.stderr == expected
    assert expected.startswith("clip.mp4: damaged: ")


def test_a_file_that_is_no_video_does_not_cost_the_others(model):
    write_clip(Path("b.mp4"), moving(1))
    Path("a.mp4").write_text("no video")
    result = describe("a.mp4", "b.mp4", "--out", "drawn", code=1)
    assert result.stderr.startswith("skipped: a.mp4: not a video that can be read")
    assert result.stderr.count("\n") == 1
    assert listed("drawn") == ["b.mp4", "b.tracks.jsonl", "b.vtt"]


def test_videos_in_a_folder_are_described_if_every_is_given(model):
    write_clip(Path("album/sub/clip.mov"), moving(1))
    write_clip(Path("album/clip.mp4"), moving(1))
    Image.new("RGB", (64, 32)).save("album/a.jpg")
    told = describe("album", "--json", "a.jsonl").stderr
    assert "skipped: album/clip.mp4 and 1 other video; saywhere describe --every" in told
    assert [row["image"] for row in rows("a.jsonl")] == ["album/a.jpg"]
    assert model.looks == 0
    Path("album/a.jpg").unlink()
    hint = describe("album", code=2)
    assert hint.stderr.startswith("error: album: no images in this folder, but videos such as album/clip.mp4; ")
    Image.new("RGB", (64, 32)).save("album/a.jpg")
    assert "skipped" not in describe("album", "--out", "drawn", "--every", "0.5s").stderr
    assert sorted(p.relative_to("drawn").as_posix() for p in Path("drawn").rglob("[!.]*.*")) == [
        "a.jpg", "clip.mp4", "clip.tracks.jsonl", "clip.vtt", "sub/clip.mov.mp4", "sub/clip.mov.tracks.jsonl",
        "sub/clip.mov.vtt",
    ]  # fmt: skip


def test_tracks_are_printed_on_demand(model):
    write_clip(Path("clip.mp4"), moving(1))
    describe("clip.mp4", "--json", "tracks.jsonl")
    for more in ((), ("--out", "drawn"), ("--out", "drawn")):  # anew, anew, and already there
        printed = describe("clip.mp4", "--json", "-", *more)
        assert printed.stdout == Path("tracks.jsonl").read_text() and "clip.mp4: " in printed.stderr


def test_beside_images_the_lines_are_theirs_and_the_tracks_go_below_out(model):
    for name in ("a.mp4", "b.mp4"):
        write_clip(Path(name), moving(0.5))
    plate(230, {"red": (20, 40)}).save("a.png")
    describe("a.mp4", "b.mp4", "a.png", "--json", "a.jsonl", "--out", "drawn")
    assert [row["image"] for row in rows("a.jsonl")] == ["a.png"]
    assert all(spans(f"drawn/{name}.tracks.jsonl") for name in "ab")


def test_what_does_not_go_together_is_refused(model):
    for name in ("clip.mp4", "other.mp4"):
        write_clip(Path(name), moving(0.5))
    plate(230, {}).save("a.png")
    Path("boxes.json").write_text("[[0, 0, 5, 5]]")
    Path("notes.jsonl").write_text('{"image": "a.jpg", "boxes": []}\n')
    for words, message in (
        (["clip.mp4", "--boxes", "boxes.json"], "--boxes is for images; clip.mp4 is a video"),
        (["clip.mp4", "--map", "coco80"], "--map is for images; clip.mp4 is a video"),
        (["clip.mp4", "other.mp4", "--json", "a.jsonl"], "--json a.jsonl: can hold the tracks of only one video"),
        (
            ["a.png", "clip.mp4", "--json", "a.jsonl"],
            "--json a.jsonl: takes the lines of the images; for the tracks of clip.mp4 give --out DIR as well",
        ),
        (
            ["a.png", "clip.mp4", "other.mp4", "--json", "a.jsonl"],
            "--json a.jsonl: takes the lines of the images; for the tracks of 2 videos give",
        ),
        (["clip.mp4", "--json", "notes.jsonl"], "notes.jsonl: does not have the tracks of clip.mp4"),
        (["clip.mp4", "--out", "."], "clip.mp4: is the video itself and would be overwritten"),
        (["clip.mp4", "--every", "soon"], "--every soon: give a time"),
        (["clip.mp4", "--json", "."], "--json .: is a folder; give the name of a file"),
        (["clip.mp4", "--camera", "0"], "--camera 0 cannot be combined with clip.mp4"),
        (["--camera", "98"], "camera 98: "),
        ([], "missing argument 'PATH...'"),
    ):
        error = error_of(describe(*words, code=2))
        assert error.startswith(f"error: {message}"), (words, error)
    assert model.looks == 0
    assert listed(".") == ["a.png", "boxes.json", "clip.mp4", "notes.jsonl", "other.mp4"]


def test_a_camera_is_described_until_ctrl_c(model):
    write_clip(Path("device.mp4"), moving(6))
    model.before = lambda look: look == 31 and signal.raise_signal(signal.SIGINT)
    result = describe("--camera", "device.mp4", "--every", "0.1s", "--out", "drawn")
    assert result.stderr == "camera device.mp4: Ctrl-C ends the recording\n"
    assert "camera device.mp4: 2 tracks in 1 scene, 31 looks" in result.stdout
    assert spans("drawn/camera-device.tracks.jsonl") == [("a red square", 0, 3.1), ("a blue square", 0, 3.1)]
    assert list(frames("drawn/camera-device.mp4")) == pytest.approx([n / 10 for n in range(31)], abs=0.001)
    assert Path("drawn/camera-device.vtt").read_text().startswith("WEBVTT\n\n00:00:00.000 --> 00:00:03.1")
    again = describe("--camera", "device.mp4", "--out", "drawn", code=2)
    assert "is an earlier recording" in again.stderr


def test_tracks_are_on_the_disk_as_soon_as_they_have_ended(model):
    write_clip(Path("clip.mp4"), [*two_scenes(), *moving(1, start=3)])
    seen: list[int] = []
    model.before = lambda look: seen.append(Path("tracks.jsonl").read_text().count('"phrase"'))
    describe("clip.mp4", "--every", "0.1s", "--json", "tracks.jsonl")
    assert seen == [0] * 21 + [2] * 10 + [3] * 9


def test_a_video_whose_name_is_too_long_costs_only_itself(model):
    write_clip(Path("clip.mp4"), moving(1))
    names = ("x" * 241, "y" * 251)
    for name in names:
        Path(f"{name}.mp4").write_bytes(Path("clip.mp4").read_bytes())
    result = describe(*(f"{name}.mp4" for name in names), "clip.mp4", "--out", "drawn", code=1)
    assert result.stderr == f"skipped: {names[1]}.mp4: {TOO_LONG}\n"
    ends = (".mp4", ".tracks.jsonl", ".vtt")
    assert listed("drawn") == [f"{name}{end}" for name in ("clip", names[0]) for end in ends]
