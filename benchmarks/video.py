"""Measure frames per second on video beside decoding alone, and memory after short and long videos.

    python benchmarks/video.py [--seconds 20] [--every 0.5s] [--rounds 3] [--memory 10 1000] [--scenes] [--json FILE]

The clip is photographs of scikit-image under a moving camera, 1280 x 720, 25 frames a second, a cut every five seconds.
"decoding" takes the frames from the file and nothing more; "following" is ``describe --json``, "drawing" ``describe
--out``, both without the time for loading the model. The three take turns. Memory is that of ``describe --out`` on
small clips (320 x 180, every 1s) of ``--memory`` seconds, each in its own process.
``--scenes`` compares ten photographs with themselves (a camera that moves by 6 % of the width, half the light) and with
one another as scenes are compared: by the mean cosine of the cells. Then it compares sampled frames as an index does:
the similarity with the frame before, also after a cat or a person, 8 % and 13 % of the image, has appeared.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the program does; read when NumPy is imported

import av
import numpy as np
import skimage
from PIL import Image

import saywhere
from saywhere.files import write_text
from saywhere.images import open_image
from saywhere.search.indexing import likeness as index_likeness
from saywhere.video import parse_duration, to_ticks
from saywhere.video.reading import VideoReader
from saywhere.video.results import Places, TracksFile
from saywhere.video.tracking import Recording, Watcher

PHOTOGRAPHS = ("motorcycle_left.png", "astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "camera.png")
SCENES = (*PHOTOGRAPHS, "hubble_deep_field.jpg", "page.png", "coins.png", "brick.png")
MOVES = ((1, 6), (3, 19), (6, 38), (12, 77))
"""Shares of the width in percent, and pixels."""
SCENE, RATE = 5, 25


def write_clip(path: Path, seconds: int, size: tuple[int, int]) -> None:
    """Write a video of ``seconds`` in scenes of ``SCENE`` seconds, each a photograph under a moving camera."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for scene in range(-(-seconds // SCENE)):
            name = PHOTOGRAPHS[scene % len(PHOTOGRAPHS)]
            photo = Image.open(f"{skimage.data_dir}/{name}").convert("RGB")
            wide = photo.resize((round(size[0] * 1.25), size[1]))
            for number in range(min(SCENE, seconds - scene * SCENE) * RATE):
                left = round(0.25 * size[0] * number / (SCENE * RATE))
                view = wide.crop((left, 0, left + size[0], size[1]))
                file.mux(stream.encode(av.VideoFrame.from_image(view)))
        file.mux(stream.encode())


def decode(clip: Path) -> int:
    with VideoReader(clip, clip.name) as reader:
        return sum(1 for _ in reader)


def follow(clip: Path, places: Places, watch: Watcher, every: int) -> dict[str, int]:
    places.check(clip)
    with VideoReader(clip, clip.name) as reader, TracksFile(places, clip.name, {}) as file:
        recording = Recording(reader, watch, every, file)
        for _ in recording.run():
            pass
        recording.finish()
    return {"looks": recording.looks, "tracks": recording.tracks, "scenes": recording.scenes}


def measure_speed(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    clip = folder / "clip.mp4"
    write_clip(clip, options.seconds, (1280, 720))
    watch = Watcher(saywhere.load(threads=options.threads), 10, 0.2)
    every = to_ticks(parse_duration(options.every))
    follow(clip, Places(folder / "warm.jsonl"), watch, to_ticks(5))
    seconds: dict[str, list[float]] = {"decoding": [], "following": [], "drawing": []}
    report: dict[str, Any] = {}
    for number in range(options.rounds):
        for what, taken in seconds.items():
            start = time.process_time() if options.cpu else time.perf_counter()
            if what == "decoding":
                report["frames"] = decode(clip)
            elif what == "following":
                report |= follow(clip, Places(folder / f"{number}.jsonl"), watch, every)
            else:
                follow(clip, Places.below(folder / f"drawn{number}", Path(clip.name)), watch, every)
            taken.append((time.process_time() if options.cpu else time.perf_counter()) - start)
    for what, taken in seconds.items():
        report[what] = report["frames"] / statistics.median(taken)
    return report


def measure_scenes(model: saywhere.Model) -> dict[str, list[float]]:
    """Return the minimum and maximum mean cosine of two views of one photograph, and of two photographs."""
    watch = Watcher(model, 1)
    looks: dict[tuple[str, str], np.ndarray] = {}
    for name in SCENES:
        photo = Image.open(f"{skimage.data_dir}/{name}").convert("RGB")
        width, height = photo.size[0] * 4 // 5, photo.size[1] * 4 // 5
        for step in range(4):
            left = round(0.06 * step * photo.size[0])
            looks[name, f"{step}"] = watch(open_image(photo.crop((left, 0, left + width, height)))).scene
        dark = photo.crop((0, 0, width, height)).point(lambda value: value * 0.5)
        looks[name, "dark"] = watch(open_image(dark)).scene
    names = sorted({name for name, _ in looks})
    near = [("0", "1"), ("1", "2"), ("2", "3"), ("0", "dark")]
    same = [likeness(looks[name, a], looks[name, b]) for name in names for a, b in near]
    other = [likeness(looks[a, "0"], looks[b, "0"]) for a, b in itertools.combinations(names, 2)]
    return {"the same": [min(same), max(same)], "another": [min(other), max(other)]}


def measure_looks(model: saywhere.Model) -> dict[str, list[float]]:
    """Return the minimum and maximum similarity of a frame with the one before, as ``saywhere index`` compares them."""
    whole = {name: Image.open(f"{skimage.data_dir}/{name}").convert("RGB").resize((640, 480)) for name in SCENES}
    cat = whole["chelsea.png"].resize((160, 120)), (300, 330)
    person = whole["astronaut.png"].crop((140, 0, 480, 480)).resize((150, 210)), (200, 200)
    found: dict[str, list[float]] = {}
    for photo in whole.values():
        first = photo.crop((0, 0, 512, 480))
        before = model.embed(first).vectors
        later = {f"camera moved by {share} %": photo.crop((left, 0, left + 512, 480)) for share, left in MOVES}
        later["light"] = first.point(lambda value: value * 0.7)
        for what, (guest, place) in {"a cat": cat, "a person": person}.items():
            later[what] = first.copy()
            later[what].paste(guest, place)
        others = [("another", other.crop((0, 0, 512, 480))) for other in whole.values() if other is not photo]
        for what, image in (*later.items(), *others):
            found.setdefault(what, []).append(index_likeness(model.embed(image).vectors, before))
    return {what: [min(values), max(values)] for what, values in found.items()}


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(((a * b).sum(axis=1) / lengths).mean())


def measure_memory(folder: Path, seconds: int, options: argparse.Namespace) -> dict[str, Any]:
    clip = folder / f"{seconds}.mp4"
    if not clip.exists():
        write_clip(clip, seconds, (320, 180))
    command = [sys.executable, __file__, "--child", str(clip), "--threads", str(options.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"seconds": seconds, **json.loads(done.stdout)}


def report_memory(clip: Path, threads: int) -> None:
    """Describe a clip in this process, and print its memory in MB: at the peak and at the end."""
    watch = Watcher(saywhere.load(threads=threads), 10, 0.2)
    with tempfile.TemporaryDirectory() as folder:
        counts = follow(clip, Places.below(Path(folder), Path(clip.name)), watch, to_ticks(1))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(json.dumps({"peak_mb": round(peak, 1), "end_mb": round(pages * resource.getpagesize() / 2**20, 1), **counts}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--every", default="0.5s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu", action="store_true", help="report processor time instead of wall-clock time")
    parser.add_argument("--memory", type=int, nargs="*", default=[10, 1000], metavar="SECONDS")
    parser.add_argument("--scenes", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        report_memory(options.child, options.threads)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        report: dict[str, Any] = {}
        if options.rounds:
            report = measure_speed(folder, options)
            print(f"{report['frames']} frames, {report['looks']} looks, {report['tracks']} tracks, "
                  f"{report['scenes']} scenes")  # fmt: skip
            for what in ("decoding", "following", "drawing"):
                share = report[what] / report["decoding"]
                print(f"{what:10} {report[what]:7.1f} frames a second, {share:.3f} of decoding alone")
        if options.scenes:
            model = saywhere.load(threads=options.threads)
            report["looks"] = measure_looks(model)
            report["scenes"] = {"with the aligner": measure_scenes(model)}
            model.aligner = None
            report["scenes"]["without"] = measure_scenes(model)
            print(json.dumps({name: report[name] for name in ("looks", "scenes")}, indent=1))
        report["memory"] = [measure_memory(folder, seconds, options) for seconds in options.memory]
        for row in report["memory"]:
            print(f"{row['seconds']} s of video: {row['peak_mb']} MB at most, {row['end_mb']} MB at the end, "
                  f"{row['looks']} looks, {row['tracks']} tracks, {row['scenes']} scenes")  # fmt: skip
    if options.json:
        write_text(options.json, json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
