"""The bundled model on a video of photographs: moving, cut, turned, at a variable rate; and searched."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import skimage
from commands import rows, run
from PIL import Image
from video_clips import Timed, write_clip

SIZE = (320, 240)


def moving_photograph(name: str, start: float) -> list[Timed]:
    """Two seconds of a camera that goes to the right, at 5 frames a second and then at 20; recorded lying."""
    photo = Image.open(f"{skimage.data_dir}/{name}").convert("RGB")
    width, height = photo.size
    frames: list[Timed] = []
    for time in (*(n / 5 for n in range(5)), *(1 + n / 20 for n in range(20))):
        left = round(0.1 * width * time / 2)
        view = photo.crop((left, 0, left + round(0.9 * width), height)).resize(SIZE)
        frames.append(Timed(start + time, view.rotate(90, expand=True)))
    return frames


def test_photographs_are_followed_and_cut(tmp_path):
    frames = moving_photograph("motorcycle_left.png", 0) + moving_photograph("chelsea.png", 2)
    clip = write_clip(tmp_path / "clip.mp4", frames, rotation=-90)
    tracks = tmp_path / "tracks.jsonl"
    run("describe", clip, "--every", "0.5s", "--threshold", 0.3, "--json", tracks, "--threads", 1)
    found = rows(tracks)
    scenes = [(row["start"], row["end"]) for row in found if "track" not in row]
    assert scenes[0] == (0, 2) and scenes[1][0] == 2 and scenes[1][1] >= 3.95 and len(scenes) == 2
    for scene, thing in ((1, "motorcycle"), (2, "cat")):
        best = max((row for row in found if "track" in row and row["scene"] == scene), key=lambda row: row["score"])
        assert thing in best["phrase"] and best["looks"] == 4
        assert (best["start"], best["end"]) == scenes[scene - 1]
        x1, y1, x2, y2 = best["boxes"][0]
        assert x2 - x1 > 150 and y2 - y1 > 100 and x2 <= SIZE[0] and y2 <= SIZE[1]


def test_a_search_answers_with_the_moment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    frames = moving_photograph("motorcycle_left.png", 0) + moving_photograph("chelsea.png", 2.05)
    write_clip(Path("clip.mp4"), frames, rotation=-90)
    Image.open(f"{skimage.data_dir}/coffee.png").resize(SIZE).save("coffee.jpg")
    done = run("index", "clip.mp4", "coffee.jpg", "--index", "i", "--every", "0.5s", "--threads", 1)
    assert done.stdout == "2 added, 0 updated, 0 unchanged, 0 removed, 0 skipped\n"
    asked = ("search", "--index", "i", "--threads", 1, "--top", 1)
    cat, motorcycle = (
        json.loads(run(*asked, text, "--json", "-").stdout) for text in ("a cat with whiskers", "a motorcycle")
    )
    cup = json.loads(run(*asked, "--image", "coffee.jpg", "--json", "-").stdout)
    assert Path(cat["image"]) == Path(motorcycle["image"]) == tmp_path / "clip.mp4"
    assert 2.05 <= cat["time"] < 4.05 and motorcycle["time"] < 2
    assert Path(cup["image"]) == tmp_path / "coffee.jpg" and "time" not in cup
    assert (cat["width"], cat["height"]) == SIZE and cat["phrases"][0]["words"] == "a cat"
    table = run(*asked, "a cat with whiskers", "--out", "found").stdout
    assert f"clip.mp4 at 0:0{cat['time']:g}" in table
    (drawn,) = Path("found").iterdir()
    assert drawn.name == f"001-clip-{cat['time']}s.jpg"
    with Image.open(drawn) as image:  # the cat, as far as boxes and the moving camera let it be seen
        shown = np.asarray(image.resize((80, 60))).astype(int)
        assert image.width >= 800
    unlike: dict[str, float] = {}
    for name in ("motorcycle_left.png", "chelsea.png"):
        photo = Image.open(f"{skimage.data_dir}/{name}").convert("RGB").resize((80, 60))
        unlike[name] = np.abs(shown - np.asarray(photo)).mean()
    assert unlike["chelsea.png"] < 0.8 * unlike["motorcycle_left.png"]
