"""``saywhere describe`` and ``index`` with shards, as they are typed, in several processes that are killed."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from commands import error_of, run
from photographs import noise
from shard_process import run_processes
from tiny_bundle import exported_bundle

from saywhere.search.store import Stamp, Store


def quick() -> tuple[object, ...]:
    """Return options for a tiny model, which needs no torch and little time."""
    return "--threads", "1", "--batch", "1", "--model", exported_bundle()


@pytest.fixture
def album(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve images, four of them in an archive."""
    monkeypatch.chdir(tmp_path)
    Path("album").mkdir()
    for number in range(12):
        noise(64, 48, number).save(f"album/{number:02}.png")
    with tarfile.open("shard.tar", "w") as archive:
        for number in range(4):
            archive.add(f"album/{number:02}.png", f"{number:02}.png")
            Path(f"album/{number:02}.png").unlink()
    return tmp_path


def test_three_processes_of_which_three_are_killed_describe_what_one_does(album: Path) -> None:
    images = ("describe", "shard.tar", "album", *quick())
    assert run_processes((*images, "--json", "one.jsonl"), 1, (), album / "none") == 0
    describe = "saywhere.models.model:Model.describe"
    kills = (f"{describe} 2", f"{describe} 3", "saywhere.inference.results:ResultsFile.merge 2")
    assert run_processes((*images, "--json", "many.jsonl", "--shards", 4), 3, kills, album / "kills") == 3
    assert Path("many.jsonl").read_bytes() == Path("one.jsonl").read_bytes()
    kept = sorted(path.name for path in album.iterdir() if "many" in path.name)
    assert kept == [".many.jsonl.settings.json", "many.jsonl"]


def test_what_was_skipped_is_taken_up_by_the_same_command(album: Path) -> None:
    good = Path("album/05.png").read_bytes()
    Path("album/05.png").write_bytes(b"away")
    command = ("describe", "shard.tar", "album", "--threshold", 0, "--json", "r.jsonl", "--shards", 3, *quick())
    first = run(*command, code=1)
    assert "shard 1 of 3: 3 described, 1 skipped\n" in first.stdout
    assert first.stdout.endswith("all 3 shards are done: 11 described; 1 skipped; written: r.jsonl\n")
    assert first.stderr == "skipped: album/05.png: not an image in a known format\n"
    rows = [json.loads(line) for line in Path("r.jsonl").read_text().splitlines()]
    assert [row["image"] for row in rows][4:7] == ["album/04.png", "album/06.png", "album/07.png"]
    Path("album/05.png").write_bytes(good)
    noise(64, 48, 99).save("album/new.png")
    second = run(*command).stdout
    assert "shard 0 of 3: 0 described, 4 already described\n" in second
    assert second.endswith("all 3 shards are done: 2 described; 11 already in r.jsonl; 0 skipped; written: r.jsonl\n")


def test_three_processes_of_which_three_are_killed_make_the_index_of_one(album: Path) -> None:
    images = ("index", "shard.tar", "album", *quick())
    assert run_processes((*images, "--index", "one"), 1, (), album / "none") == 0  # with as many threads as the others
    embed = "saywhere.models.model:Model.embed"
    kills = (f"{embed} 2", f"{embed} 3", "saywhere.search.store:Store.look_up 2")
    assert run_processes((*images, "--index", "many", "--shards", 4), 3, kills, album / "kills") == 3
    assert contents(Path("many")) == contents(Path("one"))
    assert not Path("many/shards").exists()


def contents(folder: Path) -> tuple[dict[str, bytes], dict[str, Stamp]]:
    """The vectors of an index, and what it knows of the files."""
    with Store(folder) as store:
        return {path.name: path.read_bytes() for path in folder.glob("*.bin")}, store.stamps()


def test_an_index_is_kept_up_to_date_in_shards(album: Path) -> None:
    """New, changed, damaged and vanished images, in folders and in archives, as without shards."""
    command = ("index", "shard.tar", "album", *quick())
    for name in ("one", "many"):
        assert run(*command, "--index", name).stdout == "12 added, 0 updated, 0 unchanged, 0 removed, 0 skipped\n"
    assert run(*command, "--index", "one").stdout == "0 added, 0 updated, 12 unchanged, 0 removed, 0 skipped\n"
    with tarfile.open("shard.tar", "w") as archive:
        for number in (2, 1):  # two are gone, and two as they were, but elsewhere in a new file
            noise(64, 48, number).save(f"{number:02}.png")
            archive.add(f"{number:02}.png")
    Path("album/05.png").unlink()
    noise(64, 48, 99).save("album/06.png")
    noise(64, 48, 98).save("album/12.png")
    Path("album/07.png").write_bytes(b"damaged")
    result = run(*command, "--index", "one", code=1)
    assert result.stdout == "1 added, 1 updated, 7 unchanged, 3 removed, 1 skipped\n"
    sharded = run(*command, "--index", "many", "--shards", 3, code=1)
    assert sharded.stdout.endswith(f"all 3 shards are done\n{result.stdout}")
    shards = re.findall(r"shard \d of 3: (\d) indexed, (\d) already indexed", sharded.stdout)
    assert np.sum(np.array(shards, int), axis=0).tolist() == [2, 7]
    assert sharded.stderr == result.stderr == "skipped: album/07.png: not an image in a known format\n"
    assert contents(Path("many")) == contents(Path("one"))
    assert run("index", "album/08.png", "--index", "one").stdout.startswith(
        "0 added, 0 updated, 1 unchanged, 0 removed"
    )
    hits = run("search", "a dog", "--index", "one", "--json", "-", "--out", "drawn", "--threads", "1")
    found = [json.loads(line)["image"] for line in hits.stdout.splitlines() if line.startswith("{")]
    assert {str(album / "shard.tar" / "01.png"), str(album / "shard.tar" / "02.png")} < set(found)
    assert len(list(Path("drawn").iterdir())) == len(found) == 9


def test_options_that_do_not_fit_are_one_line(album: Path) -> None:
    for arguments, message in (
        (("describe", "album", "--shards", 2), "--shards needs --json FILE"),
        (("index", "album", "--index", "i", "--shards", 2, "--repair"), "--repair is for one process"),
        (("index", "@-", "--index", "i", "--shards", 2), "give @FILE instead of @-"),
    ):
        assert message in error_of(run(*arguments, code=2))
    assert not Path("i").exists() and not Path("r.jsonl").exists()
