from __future__ import annotations

import errno
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from photographs import noise
from refusals import refuses
from tiny_aligner import tiny_aligner
from torch import Tensor, nn

from saywhere.images import Preprocess, open_image
from saywhere.networks.aligner.network import Aligner
from saywhere.training import cache

PREPROCESS = Preprocess(32, 8, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@dataclass(frozen=True)
class Photo:
    image: Path
    width: int
    height: int


class Backbone(nn.Module):
    """Two levels; counts the images that pass through it, and fails after ``limit`` of them."""

    def __init__(self, limit: int | None = None):
        super().__init__()
        torch.manual_seed(0)
        self.fine, self.coarse = nn.Conv2d(3, 4, 4, 4), nn.Conv2d(3, 5, 8, 8)
        self.seen, self.limit, self.shapes = 0, limit, []

    def forward(self, pixels: list[Tensor]) -> list[tuple[Tensor, ...]]:
        assert not self.training
        self.shapes.append({tuple(p.shape) for p in pixels})
        self.seen += len(pixels)
        if self.limit is not None and self.seen > self.limit:
            raise KeyboardInterrupt
        return [(self.fine(p), self.coarse(p)) for p in pixels]


@pytest.fixture
def photos(tmp_path: Path) -> list[Photo]:
    made = []
    for i in range(5):
        width, height = (64, 32) if i % 2 else (32, 64)
        noise(width, height, seed=i).save(tmp_path / f"{i}.png")
        made.append(Photo(tmp_path / f"{i}.png", width, height))
    return made


def build(folder: Path, backbone: Backbone, photos: list[Photo], flip: bool = True) -> cache.FeatureCache:
    return cache.build(folder / "cache", "toy", backbone, PREPROCESS, photos, flip, batch_size=2)


def count(built: cache.FeatureCache) -> int:
    """Files of views."""
    return len(list(built.folder.glob("*.npz")))


def test_stored_features_are_those_of_the_backbone_in_half_precision(tmp_path: Path, photos: list[Photo]) -> None:
    backbone = Backbone()
    built = build(tmp_path, backbone, photos)
    assert count(built) == 10
    assert all(len(shapes) == 1 for shapes in backbone.shapes)
    for i, photo in enumerate(photos):
        pixels = torch.from_numpy(PREPROCESS(open_image(photo.image, PREPROCESS.long_side)))
        for flipped in (False, True):
            (expected,) = backbone.eval()([pixels.flip(-1) if flipped else pixels])
            for stored, wanted in zip(built.read(i, flipped), expected, strict=True):
                assert stored.dtype == torch.float16
                torch.testing.assert_close(stored, wanted.half(), atol=1e-3, rtol=1e-3)


def test_a_cache_is_made_once(tmp_path: Path, photos: list[Photo]) -> None:
    build(tmp_path, Backbone(), photos)
    again = Backbone()
    built = build(tmp_path, again, photos)
    assert again.seen == 0
    assert count(built) == 10


def test_what_it_depends_on_is_in_its_name(tmp_path: Path, photos: list[Photo]) -> None:
    def key(name: str = "toy", net: nn.Module | None = None, pre: Preprocess = PREPROCESS, n: int = 5) -> str:
        return cache.cache_key(name, net or Backbone(), pre, photos[:n])

    other = Backbone()
    with torch.no_grad():
        other.fine.weight[0, 0, 0, 0] += 1e-3
    keys = [key(), key(name="toy2"), key(net=other), key(pre=Preprocess(40, 8, (0.5,) * 3, (0.5,) * 3)), key(n=4)]
    assert key() == keys[0]
    os.utime(photos[0].image, (0, 0))
    assert key() == keys[0], "a copied data set is the same"
    strided = Backbone()
    strided.__dict__["strides"] = (8,)
    assert key(net=strided) not in keys
    noise(32, 64, seed=99).save(photos[0].image)
    assert len({*keys, key()}) == 6


def test_features_of_regions_depend_on_the_settings_and_weights_of_the_trunk(photos: list[Photo]) -> None:
    def key(network: Aligner) -> str:
        return cache.cache_key(network.extractor.settings, network.extractor, network.trunk.preprocess, photos)

    network = tiny_aligner()
    keys = [
        key(network),
        key(tiny_aligner(proposals={"post_nms_top_n": 5})),
        key(tiny_aligner(levels=[16])),
        key(tiny_aligner(trunk={"long_side": 64})),
    ]
    with torch.no_grad():
        network.get_parameter("encoders.0.words.weight").add_(1)
        assert key(network) == keys[0], "the text encoder has no part in them"
        for part in ("backbone", "pyramid", "localization"):
            next(network.trunk.get_submodule(part).parameters()).add_(1)
            keys.append(key(network))
    assert len(set(keys)) == 7


def test_an_interrupted_cache_is_resumed(tmp_path: Path, photos: list[Photo]) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, Backbone(limit=5), photos)
    rest = Backbone()
    built = build(tmp_path, rest, photos)
    assert 0 < rest.seen < 10
    whole = build(tmp_path / "other", Backbone(), photos)
    for i in range(5):
        for flipped in (False, True):
            for a, b in zip(built.read(i, flipped), whole.read(i, flipped), strict=True):
                assert torch.equal(a, b)


@pytest.mark.parametrize("place", [60, -60])
def test_changed_bytes_are_never_used(tmp_path: Path, photos: list[Photo], place: int) -> None:
    file = build(tmp_path, Backbone(), photos).folder / "000003.npz"
    values = bytearray(file.read_bytes())
    values[place] ^= 255
    file.write_bytes(values)
    built = build(tmp_path, Backbone(), photos)
    refuses(r"000003\.npz is damaged; delete", built.read, 3, False)
    assert built.read(3, True) and built.read(2, False)


def test_a_view_that_is_missing_is_computed_again(tmp_path: Path, photos: list[Photo]) -> None:
    (build(tmp_path, Backbone(), photos).folder / "000001-mirrored.npz").unlink()
    rest = Backbone()
    assert count(build(tmp_path, rest, photos)) == 10
    assert rest.seen == 2  # both views of one image


def test_damaged_images_are_left_out_and_named(tmp_path: Path, photos: list[Photo]) -> None:
    photos[2].image.write_bytes(photos[2].image.read_bytes()[:200])
    for backbone in (Backbone(), Backbone()):
        built = build(tmp_path, backbone, photos)
        assert list(built.damaged) == [2]
        assert "2.png" in built.damaged[2]
        assert count(built) == 8
    assert backbone.seen == 0
    assert list(built.numbers) == [0, 1, 3, 4]
    whole = build(tmp_path / "others", Backbone(), photos[3:])
    assert torch.equal(built.read(2, True)[0], whole.read(0, True)[0])


def test_one_view_is_enough_without_flips(tmp_path: Path, photos: list[Photo]) -> None:
    assert count(build(tmp_path, Backbone(), photos, flip=False)) == 5
    more = Backbone()
    assert count(build(tmp_path, more, photos, flip=True)) == 10


def test_huge_values_stay_finite(tmp_path: Path, photos: list[Photo]) -> None:
    backbone = Backbone()
    with torch.no_grad():
        backbone.fine.weight.mul_(1e7)
    assert torch.isfinite(build(tmp_path, backbone, photos).read(0, False)[0]).all()


def test_a_full_disk_is_reported_before_and_when_it_happens(
    tmp_path: Path, photos: list[Photo], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 10})
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: usage)
        refuses(r"disk is full \(about .* GB are needed\)", build, tmp_path, Backbone(), photos)

    class Full(Backbone):
        def forward(self, pixels: list[Tensor]) -> list[tuple[Tensor, ...]]:
            raise OSError(errno.ENOSPC, "No space left on device")

    refuses("disk is full", build, tmp_path, Full(), photos)
    assert count(build(tmp_path, Backbone(), photos)) == 10


class Slow(Backbone):
    """Waits in its second pass until ``resume`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.resume = threading.Event(), threading.Event()

    def forward(self, pixels: list[Tensor]) -> list[tuple[Tensor, ...]]:
        if self.seen:
            self.begun.set()
            assert self.resume.wait(600)
        return super().forward(pixels)


def test_of_two_runs_at_once_one_fills_the_cache_and_the_other_waits(
    tmp_path: Path, photos: list[Photo], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("saywhere.inference.claims.LOCK_WAIT", 0.0)
    slow, second, built = Slow(), Backbone(), {}

    def fill(name: str, backbone: Backbone) -> None:
        built[name] = build(tmp_path, backbone, photos)

    threads = [threading.Thread(target=fill, args=pair) for pair in (("first", slow), ("second", second))]
    threads[0].start()
    assert slow.begun.wait(600)
    threads[1].start()
    output, end = "", time.monotonic() + 600
    while "waiting" not in output and threads[1].is_alive() and time.monotonic() < end:
        output += capsys.readouterr().err
        time.sleep(0.01)
    slow.resume.set()
    for thread in threads:
        thread.join(600)
    assert "another run is filling this cache; waiting for it" in output
    assert (slow.seen, second.seen) == (10, 0)
    for cached in (built["first"], built["second"]):
        assert len([cached.read(i, flipped) for i in range(5) for flipped in (False, True)]) == 10


def test_a_system_without_locks_fills_caches_all_the_same(
    tmp_path: Path, photos: list[Photo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert count(build(tmp_path / "a", Backbone(), photos)) == 10
    monkeypatch.undo()

    def unsupported(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert count(build(tmp_path / "b", Backbone(), photos)) == 10
