"""``saywhere index`` on videos: their moments, updates, kills, damage, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import error_of, run
from PIL import Image
from refusals import refuses
from typer.testing import Result
from video_clips import SquareEmbedder, Timed, damage, moving, plate, write_clip

import saywhere
from saywhere.search.indexing import MISSING, likeness, open_found
from saywhere.search.store import Store
from saywhere.search.stores import split_moment


@pytest.fixture
def model(monkeypatch, tmp_path) -> SquareEmbedder:
    stub = SquareEmbedder()
    monkeypatch.setattr("saywhere.cli.options.load_model", lambda *_: stub)
    monkeypatch.chdir(tmp_path)
    return stub


def index(*arguments: object, folder: str = "i", code: int = 0) -> Result:
    return run("index", *arguments, "--index", folder, code=code)


def three_scenes() -> list[Timed]:
    """Two seconds with a red and a blue square, a second with a green one, and a second at night."""
    green = (Timed(2 + n / 10, plate(230, {"green": (20, 40), "blue": (140, 80)})) for n in range(10))
    night = (Timed(3 + n / 10, plate(20, {"blue": (140, 80)})) for n in range(10))
    return [*moving(2), *green, *night]


def moments(folder: str = "i") -> dict[str, list[float | None]]:
    """The times in an index, by the names of the files."""
    found: dict[str, list[float | None]] = {}
    with Store(Path(folder)) as store:
        snapshot = store.snapshot()
        names = store.look_up(snapshot, np.flatnonzero(snapshot.alive).tolist())
        assert names is not None
        for path, time in map(split_moment, names):
            found.setdefault(Path(path).name, []).append(time)
    return found


def content(folder: str) -> dict[str, tuple]:
    """All that an index says of its entries, by their names."""
    with Store(Path(folder)) as store:
        snapshot = store.snapshot()
        entries = np.flatnonzero(snapshot.alive).tolist()
        names = store.look_up(snapshot, entries)
        assert names is not None
        loaded = [snapshot.load(entry, "") for entry in entries]
        return {n: (v.boxes.tolist(), v.vectors.tolist()) for n, v in zip(names, loaded, strict=True)}


def test_what_shows_something_new_is_kept_with_its_moment(model) -> None:
    write_clip(Path("album/clip.mp4"), three_scenes())
    Image.new("RGB", (64, 32)).save("album/a.png")
    result = index("album", "--every", "0.2s")
    assert result.output == "2 added, 0 updated, 0 unchanged, 0 removed, 0 skipped\n"
    assert moments() == {"a.png": [None], "clip.mp4": [0.0, 2.0, 3.0]} and model.looks == 1 + 20
    assert index("album").stdout == "0 added, 0 updated, 2 unchanged, 0 removed, 0 skipped\n"
    os.utime("album/clip.mp4", (1, 1))  # another time, the same content
    assert index("album/clip.mp4").stdout.startswith("0 added, 0 updated, 1 unchanged")
    assert model.looks == 21 and moments()["clip.mp4"] == [0.0, 2.0, 3.0]


def test_a_changed_video_replaces_its_moments_and_a_vanished_one_is_forgotten(model) -> None:
    write_clip(Path("album/clip.mp4"), three_scenes())
    Image.new("RGB", (64, 32)).save("album/a.png")
    index("album", "--every", "0.2s")
    write_clip(Path("album/clip.mp4"), moving(1))
    assert index("album").stdout == "0 added, 1 updated, 1 unchanged, 0 removed, 0 skipped\n"
    assert moments()["clip.mp4"] == [0.0] and model.looks == 21 + 5  # as often as before
    Path("album/clip.mp4").unlink()
    assert index("album").stdout == "0 added, 0 updated, 1 unchanged, 1 removed, 0 skipped\n"
    assert moments() == {"a.png": [None]}


def test_looks_are_half_a_second_apart_and_can_be_chosen(model) -> None:
    write_clip(Path("clip.mp4"), three_scenes())
    index("clip.mp4")
    assert model.looks == 8
    assert index("clip.mp4", "--every", "500ms").stdout.startswith("0 added, 0 updated, 1 unchanged")
    assert index("clip.mp4", "--every", "1.5s").stdout.startswith("0 added, 1 updated, 0 unchanged")
    assert moments() == {"clip.mp4": [0.0, 3.0]} and model.looks == 8 + 3
    assert index("clip.mp4").stdout.startswith("0 added, 0 updated, 1 unchanged")


def test_in_python_and_removed_by_hand(model, tmp_path) -> None:
    write_clip(Path("clip.mp4"), three_scenes())
    with saywhere.Index("i", "squares", load=lambda _: model) as made:
        assert made.add("clip.mp4", every=1.0).added == 1
        assert len(made) == 3 and made.add("clip.mp4", every=1.0).unchanged == 1
        refuses("every: give a time from 1ms to 60m", made.add, "clip.mp4", every=0)
        assert (made.remove("clip.mp4"), made.remove("clip.mp4"), len(made)) == (1, 0, 0)
        assert made.add("clip.mp4").added == 1


SCRIPT = "\n".join((
    "import os, signal, sys",
    f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})",
    "import saywhere.cli.index",
    "from saywhere import cli",
    "from video_clips import SquareEmbedder",
    "model, stop = SquareEmbedder(), int(sys.argv.pop(1))",
    "model.finder.before = lambda look: look == stop and os.kill(os.getpid(), signal.SIGKILL)",
    "saywhere.cli.options.load_model = lambda *_: model",
    "cli.main()",
))  # fmt: skip
"""``saywhere`` in a process that is killed at a look."""


def killed(look: int, *arguments: str) -> None:
    command = [sys.executable, "-c", SCRIPT, str(look), "index", *arguments, "--index", "i"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_a_killed_run_loses_a_batch_and_the_next_one_goes_on(model) -> None:
    write_clip(Path("clip.mp4"), three_scenes(), every_key=7)
    command = ("clip.mp4", "--every", "100ms", "--batch", "4")
    index(*command, folder="undisturbed")
    assert model.looks == 40
    killed(27, *command)
    assert moments() == {"clip.mp4": [0.0, 2.0]}  # whole, and without what comes later
    killed(3, *command)  # before a batch was done
    assert moments() == {"clip.mp4": [0.0, 2.0]}
    result = index(*command)
    assert result.stdout == "1 added, 0 updated, 0 unchanged, 0 removed, 0 skipped\n"
    assert model.looks == 40 + 16 and content("i") == content("undisturbed")
    assert index(*command).stdout.startswith("0 added, 0 updated, 1 unchanged")


def test_a_video_that_changes_while_it_is_half_done_is_begun_anew(model) -> None:
    write_clip(Path("clip.mp4"), three_scenes())
    killed(35, "clip.mp4", "--every", "100ms")
    assert moments() == {"clip.mp4": [0.0, 2.0, 3.0]}
    write_clip(Path("clip.mp4"), moving(1))
    index("clip.mp4")
    assert moments() == {"clip.mp4": [0.0]} and model.looks == 10


def test_ctrl_c_is_told_and_the_run_goes_on(model) -> None:
    write_clip(Path("clip.mp4"), three_scenes())
    model.finder.interrupt(30)
    result = index("clip.mp4", "--every", "100ms", code=130)
    assert result.stderr == "interrupted after 0 of 1 image; run it again to continue\n"
    index("clip.mp4", "--every", "100ms")
    assert moments() == {"clip.mp4": [0.0, 2.0, 3.0]} and model.looks == 30 + 16


def test_damage_is_reported_and_the_rest_indexed(model) -> None:
    damage(
        write_clip(Path("clip.mp4"), [*moving(10), *(t._replace(time=10 + t.time) for t in three_scenes())]), 0.3, 0.4
    )
    result = index("clip.mp4", "--every", "0.2s", code=1)
    assert result.stderr.startswith("clip.mp4: damaged: ") and result.stderr.count("\n") == 1
    assert result.stdout == "1 added, 0 updated, 0 unchanged, 0 removed, 0 skipped, 1 damaged\n"
    assert {12.0, 13.0} <= set(moments()["clip.mp4"])
    index("clip.mp4")


def test_what_is_no_video_is_skipped_and_forgotten(model) -> None:
    write_clip(Path("album/b.mp4"), moving(1))
    write_clip(Path("album/a.mp4"), moving(1))
    index("album")
    Path("album/a.mp4").write_text("no video")
    result = index("album", code=1)
    assert result.stdout == "0 added, 0 updated, 1 unchanged, 0 removed, 1 skipped\n"
    assert result.stderr.startswith("skipped: album/a.mp4: not a video that can be read")
    assert moments() == {"b.mp4": [0.0]}


def test_without_the_extra_videos_are_skipped_and_not_forgotten(model, monkeypatch) -> None:
    write_clip(Path("album/clip.mp4"), three_scenes())
    index("album")
    write_clip(Path("album/clip.mp4"), moving(1))
    Image.new("RGB", (64, 32)).save("album/a.png")
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "saywhere.video.reading", raising=False)
    result = index("album", code=1)
    assert result.stderr == f"skipped: album/clip.mp4: {MISSING}\n"
    assert result.stdout == "1 added, 0 updated, 0 unchanged, 0 removed, 1 skipped\n"
    assert moments() == {"clip.mp4": [0.0, 2.0, 3.0], "a.png": [None]}
    refuses("clip.mp4: a video needs av", open_found, "clip.mp4", 2.0, 96)


def test_a_video_with_damaged_vectors_is_embedded_anew(model) -> None:
    """At the interval that it had, whatever is given."""
    Path("album").mkdir()
    Image.new("RGB", (64, 32)).save("album/a.png")
    for name in ("a.mp4", "b.mp4"):
        write_clip(Path(name), three_scenes())
    index("a.mp4", "--every", "1s")
    index("b.mp4", "album")
    whole = content("i")
    data = bytearray(Path("i/vectors-0.bin").read_bytes())
    data[1] ^= 0x20
    Path("i/vectors-0.bin").write_bytes(data)
    before = model.looks
    result = index("album", "--repair")
    assert result.stdout == "0 added, 1 updated, 1 unchanged, 0 removed, 0 skipped\n"
    assert model.looks == before + 4 and content("i") == whole


def test_a_damaged_video_is_continued_by_any_run_until_it_is_whole(model) -> None:
    Path("album").mkdir()
    Image.new("RGB", (64, 32)).save("album/a.png")
    write_clip(Path("a.mp4"), three_scenes())
    index("a.mp4", "album")
    whole = content("i")
    Path("i/images-0.bin").write_bytes(b"")
    with saywhere.Index("i", load=lambda _: model) as made:
        run = made.begin(["album"], repair=True)
        model.finder.before = lambda look: 1 / 0 if look == 13 else None
        with pytest.raises(ZeroDivisionError):
            list(run.results(batch=2))
        model.finder.before = lambda look: None
        assert 0 < len(made) < len(whole)
        assert str(made.add("album")) == "0 added, 1 updated, 1 unchanged, 0 removed, 0 skipped"
    assert content("i") == whole


def test_shards_are_for_images(model, monkeypatch) -> None:
    bundled = saywhere.load(threads=1)
    monkeypatch.setattr("saywhere.cli.options.load_model", lambda *_: bundled)
    write_clip(Path("album/clip.mp4"), moving(1))
    Image.new("RGB", (64, 32)).save("album/a.png")
    error = error_of(index("album/clip.mp4", "--shards", "2", code=2))
    assert error.startswith("error: --shards is for images; album/clip.mp4 is a video")
    assert index("album", "--shards", "2", "--every", "1s", code=2).stderr.startswith(
        "error: --every is for one process"
    )
    index("album", "--shards", "2")
    assert moments() == {"a.png": [None]}
    assert index("album").stdout.startswith("1 added, 0 updated, 1 unchanged")


def test_likeness_counts_what_is_new_and_not_what_is_gone() -> None:
    one, two = np.eye(3, dtype=np.float32)[:2], np.eye(3, dtype=np.float32)
    assert likeness(one, 5 * two) == 1
    assert likeness(two, one) == pytest.approx(2 / 3)
    assert likeness(np.array([[1.0, 1.0, 0.0]]), one) == pytest.approx(0.5**0.5)


def test_a_moment_is_shown_as_it_was_seen(tmp_path) -> None:
    clip = write_clip(tmp_path / "clip.mp4", three_scenes(), every_key=9)
    seen = SquareEmbedder()
    for time, first in ((0.0, 10), (1.7, 44)):
        boxes = seen.one(open_found(str(clip), time, 96)).boxes
        assert boxes[1][0] == pytest.approx(first, abs=3) and len(boxes) == 3
    refuses(r"has no frame at 9\.5 seconds any more", open_found, str(clip), 9.5, 96)
