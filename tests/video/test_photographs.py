"""The bundled model on a video of photographs: moving, cut, turned, at a variable rate."""

from __future__ import annotations

import json

import skimage
from PIL import Image
from typer.testing import CliRunner
from video_clips import Timed, write_clip

from saywhere import cli

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
    words = ["describe", str(clip), "--every", "0.5s", "--threshold", "0.3", "--json", str(tracks), "--threads", "1"]
    done = CliRunner().invoke(cli.app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    rows = [json.loads(line) for line in tracks.read_text().splitlines()]
    scenes = [(row["start"], row["end"]) for row in rows if "track" not in row]
    assert scenes[0] == (0, 2) and scenes[1][0] == 2 and scenes[1][1] >= 3.95 and len(scenes) == 2
    for scene, thing in ((1, "motorcycle"), (2, "cat")):
        best = max((row for row in rows if "track" in row and row["scene"] == scene), key=lambda row: row["score"])
        assert thing in best["phrase"] and best["looks"] == 4
        assert (best["start"], best["end"]) == scenes[scene - 1]
        x1, y1, x2, y2 = best["boxes"][0]
        assert x2 - x1 > 150 and y2 - y1 > 100 and x2 <= SIZE[0] and y2 <= SIZE[1]
