"""Frames of videos: their times, upright, past damaged places, and from any place on."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import wave
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import photographs
import pytest
from av.stream import Disposition
from commands import run
from PIL import ExifTags, Image
from refusals import refuses
from video_clips import TURNS, Timed, add_cover, damage, moving, set_matrix, write_clip

from saywhere.video import TICKS, Damage, clock, moment, parse_duration, to_seconds, to_ticks
from saywhere.video.reading import Frame, VideoError, VideoReader, fit, open_camera


def read(path: Path, start: int = 0) -> tuple[list[Frame], Damage]:
    with VideoReader(path, path.name, start=start) as reader:
        return list(reader), reader.damage


def grey(level: int) -> Image.Image:
    return Image.new("RGB", (64, 32), (level,) * 3)


def test_times_are_those_of_the_file_also_of_a_variable_rate(tmp_path):
    times = [0, 0.04, 0.08, 0.5, 0.501, 3.25, 3.3, 7.0]
    frames, damage = read(write_clip(tmp_path / "a.mp4", (Timed(t, grey(30 * n)) for n, t in enumerate(times))))
    assert [frame.time for frame in frames] == pytest.approx(times, abs=0.001)
    levels = [np.asarray(frame.pixels((64, 32))).mean() for frame in frames]
    assert levels == pytest.approx([30 * n for n in range(8)], abs=4)
    assert damage.count == 0


@pytest.mark.parametrize("name", ["a.mkv", "a.ts", "a.mov"])
def test_other_containers_begin_at_zero(tmp_path, name):
    frames, _ = read(write_clip(tmp_path / name, moving(2)))
    assert [frame.time for frame in frames] == pytest.approx([n / 10 for n in range(20)], abs=0.04)


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("scale", [1, 0.5])
def test_frames_are_shown_as_the_display_matrix_says(tmp_path, turn, scale):
    """All eight ways, mirrored ones too; a scale beside them changes nothing."""
    matrix, back = TURNS[turn]
    upright = photographs.quarters(96, 64)
    stored = upright if back is None else upright.transpose(back)
    clip = write_clip(tmp_path / "a.mp4", [Timed(n / 10, stored) for n in range(3)])
    frames, _ = read(set_matrix(clip, tuple(scale * value for value in matrix)))
    assert frames[0].size == (96, 64)
    seen = frames[0].image(48, "a frame")
    image = seen.pixels
    assert (seen.width, seen.height, seen.name, image.size) == (96, 64, "a frame", (48, 32))
    for x, y in ((8, 8), (40, 8), (8, 24), (40, 24)):
        assert image.getpixel((x, y)) == pytest.approx(upright.getpixel((2 * x, 2 * y)), abs=25)


@pytest.mark.parametrize("matrix", [(0.7, 0.7, -0.7, 0.7), (0, 0, 0, 0), (1, 0.1, 0, 1)])
def test_frames_with_a_slanted_matrix_are_left_as_they_are(tmp_path, matrix):
    stored = photographs.quarters(96, 64)
    clip = write_clip(tmp_path / "a.mp4", [Timed(n / 10, stored) for n in range(3)])
    frames, _ = read(set_matrix(clip, matrix))
    assert frames[0].pixels((96, 64)).getpixel((8, 8)) == pytest.approx(stored.getpixel((8, 8)), abs=25)


def test_a_picture_of_a_cover_is_no_video(tmp_path):
    cover = photographs.jpeg(Image.new("RGB", (640, 480), (250, 0, 0)))
    clip = add_cover(write_clip(tmp_path / "a.mp4", moving(2)), cover)
    with av.open(str(clip)) as file:
        assert [stream.codec_context.name for stream in file.streams.video] == ["mjpeg", "h264"]
    frames, _ = read(clip)
    assert len(frames) == 20 and frames[0].size == (192, 128)
    assert frames[0].pixels((192, 128)).getpixel((60, 120)) == pytest.approx((230,) * 3, abs=8)


def test_the_best_of_several_videos_is_read(tmp_path):
    """The one that is marked as default, then the one that FFmpeg finds best; in any order."""
    sizes = [(64, 32), (192, 128), (128, 64)]
    for marked in (1, 2):
        with av.open(str(tmp_path / "a.mkv"), "w") as file:
            streams = []
            for number, size in enumerate(sizes):
                stream = file.add_stream("libx264", rate=10)
                stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
                stream.disposition = Disposition.default if number == marked else Disposition(0)
                streams.append(stream)
            for _ in range(5):
                for stream, size in zip(streams, sizes, strict=True):
                    file.mux(stream.encode(av.VideoFrame.from_image(Image.new("RGB", size, (90, 90, 90)))))
            for stream in streams:
                file.mux(stream.encode())
        frames, _ = read(tmp_path / "a.mkv")
        assert (len(frames), frames[0].size) == (5, sizes[marked])


def test_sound_with_a_cover_is_no_video(tmp_path):
    with av.open(str(tmp_path / "a.m4v"), "w", "mp4") as file:
        stream = file.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        frame.sample_rate = 8000
        file.mux(stream.encode(frame))
        file.mux(stream.encode())
    add_cover(tmp_path / "a.m4v", photographs.jpeg(photographs.quarters()))
    refuses(r"^a\.m4v: no video in this file but a cover picture$", read, tmp_path / "a.m4v", kind=VideoError)


NAMES = ("10:22.mp4", "file:plain.mp4", "concat:plain.mp4|plain.mp4", "pipe:0", "-i.mp4", "data:a.mp4", "a%03d?.mp4")
"""What FFmpeg takes for protocols, options and patterns."""


@pytest.fixture
def listener(monkeypatch):
    """A server on this machine that must never be asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server.getsockname()[1]
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize("name", [*NAMES, "http:127.0.0.1:{port}?a.mp4", "tcp:127.0.0.1:{port}", "\udcff.mp4"])
def test_a_name_is_that_of_a_file_whatever_it_looks_like(tmp_path, monkeypatch, listener, name):
    monkeypatch.chdir(tmp_path)
    name = name.format(port=listener)
    plain = write_clip(Path("plain.mp4"), [Timed(n / 10, grey(40)) for n in range(2)])
    write_clip(Path("other.mp4"), [Timed(n / 10, grey(200)) for n in range(3)]).rename(name)
    for path in (Path(name), tmp_path / name):
        frames, _ = read(path)
        assert len(frames) == 3 and np.asarray(frames[0].pixels((64, 32))).mean() == pytest.approx(200, abs=4)
    with open_camera(name) as reader:
        assert sum(1 for _ in reader) == 3
    Path(name).unlink()
    refuses("no such file", read, Path(name), kind=VideoError)
    assert len(read(plain)[0]) == 2


LISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\n{place}\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile {place}\n",
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=a\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {port} RTP/AVP 31\n",
}


@pytest.mark.parametrize("text", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("place", ["plain.mp4", "http://127.0.0.1:{port}/a.ts", "file:plain.ts"])
@pytest.mark.parametrize("name", ["list.mp4", "list.m3u8"])
def test_a_file_that_names_others_is_no_video(tmp_path, monkeypatch, listener, text, place, name):
    monkeypatch.chdir(tmp_path)
    write_clip(Path("plain.mp4"), moving(1))
    write_clip(Path("plain.ts"), moving(1))
    Path(name).write_text(text.format(place=place.format(port=listener), port=listener))
    with pytest.raises(VideoError, match="not a video that can be read|no video in this file"):
        assert not read(Path(name))[0]


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "a.mp4")
    refuses("not a regular file", read, tmp_path / "a.mp4", kind=VideoError)


def test_pixels_that_are_not_square_are_stretched(tmp_path):
    frames = [Timed(n / 10, photographs.quarters(64, 64)) for n in range(3)]
    (first, *_), _ = read(write_clip(tmp_path / "a.mp4", frames, aspect=Fraction(2)))
    assert first.size == (128, 64)
    assert first.image(64, "a").pixels.size == (64, 32)


def test_sizes_are_even_where_they_must_be():
    assert fit((1921, 1081), 1280, 2) == (1280, 720)
    assert fit((5, 3), 1280, 2) == (4, 4)
    assert fit((10_000, 1), 512) == (512, 1)


@pytest.mark.parametrize("start", [0.05, 0.9, 2.0, 3.9])
def test_reading_from_a_place_on_gives_what_comes_after_it(tmp_path, start):
    path = write_clip(tmp_path / "a.mp4", moving(4), every_key=15)
    everything, _ = read(path)
    rest, _ = read(path, round(start * TICKS))
    expected = [frame for frame in everything if frame.time >= start]
    assert [frame.ticks for frame in rest] == [frame.ticks for frame in expected]
    for one, other in zip(rest, expected, strict=True):
        assert one.pixels((96, 64)).tobytes() == other.pixels((96, 64)).tobytes()


def test_a_file_without_an_index_is_read_from_its_beginning(tmp_path):
    with av.open(str(tmp_path / "a.m4v"), "w", "mjpeg") as file:
        stream = file.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 32, "yuvj420p"
        for level in range(0, 250, 5):
            file.mux(stream.encode(av.VideoFrame.from_image(grey(level))))
        file.mux(stream.encode())
    everything, _ = read(tmp_path / "a.m4v")
    rest, _ = read(tmp_path / "a.m4v", everything[40].ticks)
    assert [frame.ticks for frame in rest] == [frame.ticks for frame in everything[40:]]
    assert rest[0].pixels((64, 32)).tobytes() == everything[40].pixels((64, 32)).tobytes()


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"])
def test_frames_of_an_avi_file_that_refer_to_later_ones_are_all_read_in_their_order(tmp_path, codec):
    with av.open(str(tmp_path / "a.avi"), "w") as file:
        stream = file.add_stream(codec, rate=10, options={"bf": "2", "g": "12", "b_strategy": "0"})
        stream.width, stream.height, stream.pix_fmt, stream.codec_context.max_b_frames = 64, 32, "yuv420p", 2
        for number in range(40):
            frame = av.VideoFrame.from_image(grey(40 + 4 * number))
            frame.pts, frame.time_base = number, Fraction(1, 10)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    frames, damage = read(tmp_path / "a.avi")
    assert np.diff([frame.time for frame in frames]) == pytest.approx([0.1] * 39)
    assert frames[0].time <= 0.2 and damage.count == 0  # these files do not say how late the first frame is decoded
    levels = np.array([np.asarray(frame.pixels((64, 32))).mean() for frame in frames])
    assert (np.diff(levels) >= 0).all() and abs(levels - (40 + 4 * np.arange(40))).max() < 8
    for start in (5, 35):  # before which FFmpeg cannot go, and can
        rest, _ = read(tmp_path / "a.avi", frames[start].ticks)
        assert [frame.ticks for frame in rest] == [frame.ticks for frame in frames[start:]]


def test_what_begins_at_zero_again_is_noted(tmp_path):
    once = write_clip(tmp_path / "a.ts", moving(3))
    (tmp_path / "b.ts").write_bytes(once.read_bytes() * 2)
    frames, damage = read(tmp_path / "b.ts")
    assert [frame.time for frame in frames[:30]] == [frame.time for frame in read(once)[0]]
    assert damage.count >= 20 and len(frames) + damage.count <= 60


def test_reading_goes_on_behind_a_damaged_place(tmp_path):
    path = write_clip(tmp_path / "a.mp4", moving(10))
    whole, _ = read(path)
    frames, noted = read(damage(path, 0.4, 0.5))
    times = [frame.time for frame in frames]
    assert 0 < len(whole) - len(frames) < 30
    assert times[0] == 0 and times[-1] == pytest.approx(9.9) and times == sorted(times)
    assert {frame.time for frame in whole if frame.time < 3 or frame.time > 6} <= set(times)
    assert noted.count > 0 and all(3 < a <= b < 6 for a, b in noted.spans)
    assert str(noted).startswith("damaged: ") and "could not be read (second " in str(noted)


def test_damage_is_noted_in_a_few_spans():
    damage = Damage()
    for second in (1.0, 1.5, 2.0, 7.0, *range(10, 60, 5)):
        damage.note(second)
    assert damage.count == 14 and damage.spans[:2] == [[1.0, 2.0], [7.0, 7.0]]
    assert len(damage.spans) == Damage.LIMIT and damage.spans[-1][1] == 55
    assert str(damage).startswith("damaged: 14 frames could not be read (second 1.0 to 2.0, 7.0, 10.0, ")


def write_sound(path: Path) -> None:
    with wave.open(str(path), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\0\0" * 800)


def test_what_is_no_video_is_one_line(tmp_path):
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "folder.mp4").mkdir()
    write_sound(tmp_path / "sound.wav")
    reasons = {"sound.wav": "no video in this file", "none.mp4": "no such file"}
    for name in ("text.mp4", "empty.mp4", "folder.mp4", "sound.wav", "none.mp4"):
        with pytest.raises(VideoError) as refused:
            read(tmp_path / name)
        assert str(refused.value).startswith(f"{name}: {reasons.get(name, '')}") and "\n" not in str(refused.value)


def test_a_camera_that_is_not_there_is_named():
    refuses(r"camera 98: (there is no /dev/video98|cameras are read)", open_camera, "98", kind=VideoError)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0.5s", 0.5), ("500ms", 0.5), ("2m", 120), (" 1 min", 60), ("3", 3), (".25", 0.25)]
)
def test_durations(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "0", "0s", "-1s", "1 hour", "nan", "1e3", "2h", "61m", "0.5 s x"])
def test_what_is_no_duration_is_named(text):
    refuses("such as 0.5s, 500ms or 2m", parse_duration, text)


def test_ticks_and_clocks():
    assert to_ticks(1 / 30) == 3000 and to_seconds(3000) == 0.033
    assert clock(0) == "00:00:00.000"
    assert clock(3725.0406) == "01:02:05.041"
    assert clock(100 * 3600) == "100:00:00.000"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (1.0, "0:01"), (12.5, "0:12.5"), (60.04, "1:00.04"), (3723.0336, "1:02:03.034")]
)
def test_moments_as_people_read_them(seconds, text):
    assert moment(seconds) == text


def test_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "av", None)
    monkeypatch.delitem(sys.modules, "saywhere.video.reading", raising=False)
    Path("clip.mp4").write_bytes(b"a video")
    for words in (["clip.mp4"], ["--camera", "0"]):
        result = run("describe", *words, code=2)
        assert result.stdout == ""
        assert result.stderr == "error: this command needs av, which is not installed: pip install 'saywhere[video]'\n"


@pytest.mark.parametrize("name", ["a.mkv", "a.webm", "a.mp4", "a.avi"])
def test_a_file_that_was_cut_off_is_damaged_at_its_end(tmp_path, name):
    """Also where FFmpeg takes the end of what is left for the end of the video."""
    path = tmp_path / name
    options = {"movflags": "faststart"} if name == "a.mp4" else {}
    codec = {"a.webm": "libvpx", "a.avi": "mpeg4"}.get(name, "libx264")
    with av.open(str(path), "w", options=options) as file:
        stream = file.add_stream(codec, rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(30):
            noisy = photographs.noise(64, 48, number)
            file.mux(stream.encode(av.VideoFrame.from_image(noisy)))
        file.mux(stream.encode(None))
    whole = path.read_bytes()
    with VideoReader(path, name) as reader:
        times = [frame.time for frame in reader]
        assert reader.damage.count == 0
    path.write_bytes(whole[: len(whole) // 2])
    with VideoReader(path, name) as reader:
        kept = [frame.time for frame in reader]
    assert kept == times[: len(kept)] and 0 < len(kept) < len(times)
    assert str(reader.damage) == f"damaged: ends at {kept[-1] + 0.1:.1f} of 3.0 s"
    assert Damage(*json.loads(json.dumps(reader.damage.facts))).facts == (0, [], pytest.approx([kept[-1] + 0.1, 3.0]))
    if name != "a.mp4":  # the other half is not yet copied; of an MP4 file each frame is noted
        path.write_bytes(whole[: len(whole) // 2].ljust(len(whole), b"\0"))
        assert f"ends at {read(path)[0][-1].time + 0.1:.1f} of 3.0 s" in str(read(path)[1])


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4"])
def test_a_cut_file_that_lacks_only_sound_breaks_off_behind_its_video(tmp_path, name):
    with av.open(str(tmp_path / name), "w", options={"movflags": "faststart"} if name == "a.mp4" else {}) as file:
        stream, sound = file.add_stream("libx264", rate=10), file.add_stream("aac", rate=8000, layout="mono")
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(10):
            file.mux(stream.encode(av.VideoFrame.from_image(photographs.noise(64, 48, number))))
        file.mux(stream.encode())
        for number in range(40):
            frame = av.AudioFrame.from_ndarray(
                np.random.default_rng(number).random((1, 1024), np.float32), "fltp", "mono"
            )
            frame.sample_rate, frame.pts, frame.time_base = 8000, 1024 * number, Fraction(1, 8000)
            file.mux(sound.encode(frame))
        file.mux(sound.encode())
    data = (tmp_path / name).read_bytes()
    with VideoReader(tmp_path / name, name) as reader:
        assert reader.duration == pytest.approx(5.1, abs=0.2) and len(list(reader)) == 10 and not reader.damage
    (tmp_path / name).write_bytes(data[:-4000])
    frames, damage = read(tmp_path / name)
    assert len(frames) == 10 and str(damage) == "damaged: breaks off at 1.0 s"
    (tmp_path / name).write_bytes(data[: len(data) // 3])
    frames, damage = read(tmp_path / name)
    assert str(damage) == f"damaged: ends at {len(frames) / 10} of 1.0 s"


def test_a_file_of_which_the_disk_gives_only_the_beginning_ends_there(tmp_path, monkeypatch):
    class Failing(io.FileIO):
        def read(self, size: int = -1) -> bytes:
            if self.tell() + size > (tmp_path / "a.mp4").stat().st_size * 2 // 3:
                raise OSError(5, "Input/output error")
            return super().read(size)

    frames = (Timed(n / 10, photographs.noise(192, 128, n)) for n in range(30))
    write_clip(tmp_path / "a.mp4", frames, faststart=True)
    monkeypatch.setattr("saywhere.video.reading._open_regular", Failing)
    frames, damage = read(tmp_path / "a.mp4")
    assert 0 < len(frames) < 30 and str(damage) == f"damaged: ends at {len(frames) / 10} of 3.0 s"


@pytest.mark.parametrize("name", ["a.mkv", "a.mp4"])
def test_a_cut_video_that_does_not_begin_at_0_is_as_long_as_its_frames_are(tmp_path, name):
    with av.open(str(tmp_path / name), "w", options={"movflags": "faststart"} if name == "a.mp4" else {}) as file:
        stream = file.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(30):
            frame = av.VideoFrame.from_image(photographs.noise(64, 48, number))
            frame.pts, frame.time_base = 100 + number, Fraction(1, 10)
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[:-20])
    assert str(read(tmp_path / name)[1]).endswith(
        {"a.mkv": "breaks off at 3.0 s", "a.mp4": "ends at 2.9 of 3.0 s"}[name]
    )
    (tmp_path / name).write_bytes(data[: len(data) // 2])
    frames, damage = read(tmp_path / name)
    assert str(damage).endswith(f"ends at {frames[-1].time + 0.1:.1f} of 3.0 s")


def test_an_avi_file_that_was_written_to_a_pipe_is_whole(tmp_path):
    pipe = io.BytesIO()
    pipe.seekable = lambda: False  # pyright: ignore[reportAttributeAccessIssue]
    with av.open(pipe, "w", format="avi") as file:
        stream = file.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(10):
            file.mux(stream.encode(av.VideoFrame.from_image(photographs.noise(64, 48, number))))
        file.mux(stream.encode())
    (tmp_path / "a.avi").write_bytes(pipe.getvalue()[:4] + b"\xff" * 4 + pipe.getvalue()[8:])
    frames, damage = read(tmp_path / "a.avi")
    assert len(frames) == 10 and not damage


@pytest.mark.parametrize("flags", ["frag_keyframe+empty_moov", "frag_keyframe"])
def test_a_cut_file_that_does_not_say_its_length_breaks_off(tmp_path, flags):
    with av.open(str(tmp_path / "a.mp4"), "w", options={"movflags": flags}) as file:
        stream = file.add_stream("libx264", rate=10, options={"g": "5"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for number in range(20):
            file.mux(stream.encode(av.VideoFrame.from_image(photographs.noise(64, 48, number))))
        file.mux(stream.encode())
    data = (tmp_path / "a.mp4").read_bytes()
    assert not read(tmp_path / "a.mp4")[1]
    (tmp_path / "a.mp4").write_bytes(data[: len(data) // 2])
    frames, damage = read(tmp_path / "a.mp4")
    assert 0 < len(frames) < 12 and str(damage).endswith(f"breaks off at {frames[-1].time + 0.1:.1f} s")


@pytest.mark.parametrize(("orientation", "back"), [(1, None), (3, "ROTATE_180"), (6, "ROTATE_90"), (8, "ROTATE_270")])
def test_frames_of_a_camera_with_exif_are_read_upright(tmp_path, orientation, back):
    """Older cameras write AVI files of JPEGs, each with its EXIF, a kind of data that PyAV cannot name."""
    upright = photographs.quarters(96, 64)
    stored = upright if back is None else upright.transpose(Image.Transpose[back])
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    jpeg = io.BytesIO()
    stored.save(jpeg, "JPEG", exif=exif)
    with av.open(str(tmp_path / "a.avi"), "w") as file:
        stream = file.add_stream("mjpeg", rate=10)
        stream.width, stream.height, stream.pix_fmt = *stored.size, "yuvj420p"
        for number in range(3):
            packet = av.Packet(jpeg.getvalue())
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, number, number, Fraction(1, 10)
            file.mux(packet)
    frames, _ = read(tmp_path / "a.avi")
    assert [frame.size for frame in frames] == [(96, 64)] * 3
    seen = frames[0].image(96, "a frame").pixels
    for x, y in ((16, 16), (80, 16), (16, 48), (80, 48)):
        assert seen.getpixel((x, y)) == pytest.approx(upright.getpixel((x, y)), abs=25)
