"""The benchmark of videos: its clips, its arithmetic and a run without a network."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from video_clips import SquareModel, moving, write_clip

from saywhere.video.results import Places
from saywhere.video.times import to_ticks
from saywhere.video.tracking import Watcher

spec = importlib.util.spec_from_file_location("benchmark_video", Path(__file__).parents[2] / "benchmarks" / "video.py")
assert spec and spec.loader
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)


def test_a_clip_has_a_scene_every_five_seconds(tmp_path):
    benchmark.write_clip(tmp_path / "clip.mp4", 6, (64, 36))
    assert benchmark.decode(tmp_path / "clip.mp4") == 6 * benchmark.RATE


def test_what_was_followed_is_counted(tmp_path):
    clip = write_clip(tmp_path / "clip.mp4", moving(1))
    counts = benchmark.follow(
        clip, Places.below(tmp_path / "out", Path("clip.mp4")), Watcher(SquareModel()), to_ticks(0.5)
    )
    assert counts == {"looks": 2, "tracks": 2, "scenes": 1}
    assert (tmp_path / "out" / "clip.mp4").exists()


def test_likeness_is_the_mean_cosine_of_the_cells():
    a, b = np.array([[1.0, 0], [0, 2.0]]), np.array([[3.0, 0], [1.0, 1.0]])
    assert benchmark.likeness(a, b) == pytest.approx((1 + 0.5**0.5) / 2)
