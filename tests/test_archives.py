"""Images in tar archives: sound, damaged and strange ones."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from photographs import noise, png, quarters
from refusals import refuses

from saywhere.archives import list_archive, read_member
from saywhere.images import ImageError, open_image
from saywhere.inference import ResultsFile, find_images, out_path, read_boxes
from tests.stubs import StubModel, describe_images


def png_of(seed: int) -> bytes:
    stream = io.BytesIO()
    noise(20, 10, seed).save(stream, "PNG")
    return stream.getvalue()


def write_tar(path: Path, files: dict[str, bytes], format: int = tarfile.PAX_FORMAT, **options: object) -> Path:
    with tarfile.open(path, "w", format=format, **options) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture
def shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three images as webdataset lays them out, with their captions."""
    monkeypatch.chdir(tmp_path)
    files: dict[str, bytes] = {}
    for number in range(3):
        files |= {f"{number:03}.png": png_of(number), f"{number:03}.txt": b"a caption", f"{number:03}.json": b"{}"}
    return write_tar(Path("shard.tar"), files)


def names(*paths: str | Path) -> list[str]:
    return [source.name for source in find_images(paths)]


def test_images_of_an_archive_are_those_that_were_put_in(shard: Path) -> None:
    assert names(shard) == ["shard.tar/000.png", "shard.tar/001.png", "shard.tar/002.png"]
    for number, source in enumerate(find_images([shard])):
        np.testing.assert_array_equal(open_image(source.path).pixels, noise(20, 10, number))
    assert out_path(Path("out"), find_images([shard])[1]).as_posix() == "out/shard.tar/001.png"
    assert names("shard.tar/001.png") == ["shard.tar/001.png"], "one of them can be named"
    refuses(r"^shard\.tar/003\.png: no such file or folder$", find_images, ["shard.tar/003.png"])
    done = list(describe_images(StubModel(), find_images([shard]), batch=2))
    assert [len(one.result or ()) for one in done] == [2, 2, 2]


def test_names_that_look_like_addresses_or_options_are_names(shard: Path) -> None:
    """In an archive, in a list, in a file of boxes and in results."""
    odd = ["10:22.png", "file:a.png", "http:127.0.0.1:9?a.png", "-x.png", "@list.png", "b.tar/c.png", "{0}%d.png"]
    write_tar(shard, {name: png_of(number) for number, name in enumerate(odd)})
    found = [f"shard.tar/{name}" for name in odd]
    Path("@odd.txt").write_text("".join(f"{name}\n" for name in found))
    assert names(shard) == names("@@odd.txt") == names("./shard.tar") == found
    boxes = {name: [[0, 0, number + 1, 5]] for number, name in enumerate(found)}
    lines = (json.dumps({"image": name, "boxes": given}) + "\n" for name, given in boxes.items())
    Path("http:boxes.jsonl").write_text("".join(lines))
    sources = find_images([shard])
    given = read_boxes(Path("http:boxes.jsonl"), sources)
    assert given == boxes
    with ResultsFile(Path("file:results.jsonl")) as results:
        for number, one in enumerate(describe_images(StubModel(), sources, given)):
            assert one.result is not None and one.result.boxes.tolist() == [[0, 0, number + 1, 5]]
            results.append(one.result.to_dict(), one.source.name)
    assert [json.loads(line)["image"] for line in Path("file:results.jsonl").read_text().splitlines()] == found


def test_archives_are_found_by_patterns_and_not_in_folders(shard: Path) -> None:
    Path("shards/sub.tar").mkdir(parents=True)
    (Path("shards/sub.tar") / "a.png").write_bytes(png_of(5))
    for number in range(2):
        write_tar(Path(f"shards/{number}.tar"), {"x.png": png_of(number)})
    assert names("shards/*.tar") == ["shards/0.tar/x.png", "shards/1.tar/x.png", "shards/sub.tar/a.png"]
    assert names("shards") == ["shards/sub.tar/a.png"], "a folder may be called so"
    Path("shards/sub.tar/a.png").unlink()
    refuses(r"no images in this folder .* give the pattern 'shards/\*\.tar'", find_images, ["shards"])


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_every_kind_of_archive_is_whole(tmp_path: Path, format: int) -> None:
    long = "/".join(["folder"] * 12) + "/image.png"
    shard = write_tar(tmp_path / "a.tar", {"./b/1.png": b"one", long: b"two", "/3.png": b"three"}, format)
    listing = list_archive(shard)
    assert (list(listing.members), listing.damage) == (["b/1.png", long, "3.png"], "")
    assert read_member(f"{shard}/{long}") == b"two"


def test_a_header_for_all_files_is_no_damage_and_an_archive_behind_an_archive_is_named(tmp_path: Path) -> None:
    first = write_tar(tmp_path / "a.tar", {"1.png": b"one"}, pax_headers={"comment": "made by a test"})
    second = write_tar(tmp_path / "b.tar", {"2.png": b"two"}, pax_headers={"comment": "another"})
    assert (list(list_archive(first).members), list_archive(first).damage) == (["1.png"], "")
    both = tmp_path / "both.tar"
    both.write_bytes(first.read_bytes() + second.read_bytes())
    end = list_archive(first).members["1.png"][0] + 512
    damage = f"damaged archive: only its first {end} bytes are read, what follows is not part of it"
    assert (list(list_archive(both).members), list_archive(both).damage) == (["1.png"], damage)


def test_links_are_what_they_lead_to_and_those_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    """As tar stores them: a hard link is another name of a file before it, whatever comes after."""
    files = {"d/a.png": b"one", ".hidden/b": b"two", "d/hard.png": "d/a.png", "soft.png": "d/hard.png"}
    files |= {"d/up.png": "../soft.png", "h.png": ".hidden/b", "gone.png": "no.png", "out.png": "/etc/hostname"}
    files |= {"x.png": "y.png", "y.png": "x.png", "d/a.png ": b""}
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, content in [*files.items(), ("d/a.png", b"new")]:
            member = tarfile.TarInfo(name.strip())
            if isinstance(content, str):
                member.type, member.linkname = tarfile.LNKTYPE if "hard" in name else tarfile.SYMTYPE, content
                archive.addfile(member)
            elif name != "d/a.png ":
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    shard = tmp_path / "a.tar"
    listing = list_archive(shard)
    read = {name: read_member(shard / name) for name in listing.members}
    assert read == {
        "d/a.png": b"new", "d/hard.png": b"one", "soft.png": b"one", "d/up.png": b"one", "h.png": b"two",
    }  # fmt: skip
    done = {Path(one.source.name).name: one.error for one in describe_images(StubModel(), find_images([shard]))}
    assert not listing.damage and "a.tar" not in done, "an earlier d/a.png is replaced"
    wrong = {"gone.png": "no.png", "out.png": "/etc/hostname", "x.png": "y.png", "y.png": "x.png"}
    assert {name: done[name] for name in wrong} == {
        name: f"is a link to {target}, which is no file of the archive" for name, target in wrong.items()
    }
    with pytest.raises(ImageError, match=r"gone\.png: is a link to no\.png, which is no file of the archive"):
        open_image(find_images([shard / "gone.png"])[0].path)


def test_what_is_hidden_or_outside_is_left_out_and_the_latter_named(tmp_path: Path) -> None:
    files = {"._a.png": b"", ".git/b.png": b"", "../c.png": b"", "d/../../e.png": b"", "..f.png": b"", "f.png": b""}
    found = list_archive(write_tar(tmp_path / "a.tar", files))
    told = [f"{name!r} is outside of the archive's folder and left out" for name in ("../c.png", "../e.png")]
    assert list(found.members) == ["f.png"] and found.damage == f"damaged archive: {'; '.join(told)}"
    assert [source.name for source in find_images([tmp_path / "a.tar"])] == [
        str(tmp_path / "a.tar/f.png"), str(tmp_path / "a.tar")
    ]  # fmt: skip


def test_a_damaged_header_costs_what_follows_and_is_reported(shard: Path) -> None:
    data = bytearray(shard.read_bytes())
    place = list_archive(shard).members["001.png"][0]
    data[place - 512 : place - 400] = b"\xff" * 112
    shard.write_bytes(data)
    assert names(shard) == ["shard.tar/000.png", "shard.tar"]
    done = list(describe_images(StubModel(), find_images([shard])))
    damage = f"damaged archive: only its first {place - 512} bytes are read, what follows is not part of it"
    assert [one.error for one in done] == [None, damage]
    data[148:156] = b"7777777\0"  # the checksum of the first header
    shard.write_bytes(data)
    assert list_archive(shard).damage == "not a tar archive (compressed ones are not read)"


def test_an_archive_that_was_cut_gives_what_is_left(shard: Path) -> None:
    start, size = list_archive(shard).members["002.png"]
    data = shard.read_bytes()
    for kept in (start + 100, start - 100, start + size - 1):
        shard.write_bytes(data[:kept])
        done = {one.source.name: one.error for one in describe_images(StubModel(), find_images([shard]))}
        assert [done.pop(f"shard.tar/00{number}.png") for number in range(2)] == [None, None]
        damage = done.pop("shard.tar") or ""
        assert damage.startswith(f"damaged archive: only its first {start - 512} bytes are read") and done == {}


def test_an_archive_that_was_cut_between_two_files_is_not_whole(shard: Path) -> None:
    start, _ = list_archive(shard).members["002.png"]
    shard.write_bytes(shard.read_bytes()[: start - tarfile.BLOCKSIZE])
    assert names(shard) == ["shard.tar/000.png", "shard.tar/001.png", "shard.tar"]
    assert list_archive(shard).damage == "damaged archive: the end mark is missing, as if the rest were cut off"


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header that claims any size; from 8 GiB on in the way of GNU tar."""
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def blocks(data: bytes) -> bytes:
    return data + bytes(-len(data) % tarfile.BLOCKSIZE)


def record(key: str, value: str) -> bytes:
    """A record of a pax header, which begins with its own length."""
    text = f" {key}={value}\n"
    return f"{len(text) + len(str(len(text) + 2))}{text}".encode()


KINDS = {
    "member": tarfile.REGTYPE, "long name": tarfile.GNUTYPE_LONGNAME, "long link": tarfile.GNUTYPE_LONGLINK,
    "extended": tarfile.XHDTYPE, "global": tarfile.XGLTYPE, "unknown": b"Q",
}  # fmt: skip


@pytest.mark.parametrize("claimed", [10**12, 2**62, 10**20, -5000, 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_a_size_that_is_not_there_costs_no_file_before_it(shard: Path, kind: str, claimed: int) -> None:
    """Whatever a header claims, the sound file before it is used, and the archive is named."""
    sound = [header(f"{n}.png", len(data)) + blocks(data) for n, data in enumerate((png_of(0), png_of(1)))]
    shard.write_bytes(sound[0] + header("bad.png", claimed, KINDS[kind]) + sound[1] + bytes(1024))
    damage = list_archive(shard).damage
    assert damage.startswith(f"damaged archive: only its first {len(sound[0])} bytes are read") and len(damage) < 150
    done = {one.source.name: one.error for one in describe_images(StubModel(), find_images([shard]))}
    assert done == {"shard.tar/0.png": None, "shard.tar": damage}


@pytest.mark.parametrize(
    "extended",
    [
        *(record("size", size) for size in ("1" * 20, "9" * 5000, str(2**62), "-1", "5000")),
        record("GNU.sparse.major", "1") + record("GNU.sparse.minor", "0"),  # what follows is no list of its holes
        b"99999 path=1.png\n",
        b"0 a=b\n",
        record("path", "1.png\0x"),
    ],
)
def test_a_damaged_extension_costs_no_file_before_it(shard: Path, extended: bytes) -> None:
    sound = [header(f"{n}.png", len(data)) + blocks(data) for n, data in enumerate((png_of(0), png_of(1)))]
    bad = header("pax", len(extended), tarfile.XHDTYPE) + blocks(extended)
    shard.write_bytes(sound[0] + bad + sound[1] + bytes(1024))
    listing = list_archive(shard)
    assert [name for name in listing.members if name != "1.png"] == ["0.png"]
    assert listing.damage.startswith("damaged archive: ")


def test_headers_that_lead_nowhere_end_no_run(shard: Path) -> None:
    """Chains of extensions, and more faults than are named."""
    sound = header("a.png", len(png_of(0))) + blocks(png_of(0))
    chain = header("link", 5, tarfile.GNUTYPE_LONGNAME) + blocks(b"name")
    outside = header("../b.png", 0)
    for strange, end in ((chain, ""), (outside, "; and 2998 more")):
        shard.write_bytes(sound + strange * 3000)
        listing = list_archive(shard)
        assert "a.png" in listing.members
        assert listing.damage.startswith("damaged archive: ") and len(listing.damage) < 300
        assert listing.damage.endswith(end)


@pytest.mark.parametrize("records", [b"", record("GNU.sparse.map", "0,3") + record("GNU.sparse.size", "512")])
def test_a_file_with_holes_is_named_and_not_read_as_if_it_had_none(tmp_path: Path, records: bytes) -> None:
    kind = tarfile.REGTYPE if records else tarfile.GNUTYPE_SPARSE
    extended = header("pax", len(records), tarfile.XHDTYPE) + blocks(records) if records else b""
    holes = extended + header("holes.png", 512, kind) + bytes(512)
    (tmp_path / "a.tar").write_bytes(holes + header("b.png", 3) + blocks(b"two") + bytes(1024))
    listing = list_archive(tmp_path / "a.tar")
    assert list(listing.members) == ["b.png"]
    assert listing.damage == "damaged archive: 'holes.png' is stored without its zeros, which is not read"


def test_a_damaged_image_costs_only_itself(shard: Path) -> None:
    write_tar(shard, {"a.png": png_of(1), "b.png": b"no image", "c.png": b"", "d.png": png(9, 9, 8, 2, b"")})
    done = {one.source.name: one.error for one in describe_images(StubModel(), find_images([shard]))}
    assert done["shard.tar/a.png"] is None
    assert done["shard.tar/b.png"] == "not an image in a known format"
    assert done["shard.tar/c.png"] == "empty file" and "damaged" in str(done["shard.tar/d.png"])


def test_what_is_no_archive_is_skipped_beside_others(shard: Path) -> None:
    Path("bad.tar").write_bytes(b"no archive" * 300)
    Path("short.tar").write_bytes(b"x")
    done = {one.source.name: one.error for one in describe_images(StubModel(), find_images(["*.tar"]))}
    assert done["bad.tar"] == done["short.tar"] == "not a tar archive (compressed ones are not read)"
    assert sum(error is None for error in done.values()) == 3


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, bytes])
def test_compressed_archives_and_other_names_are_told_what_is_read(shard: Path, pack: Callable[[bytes], bytes]) -> None:
    Path("a.TGZ").write_bytes(pack(shard.read_bytes()))
    refuses(r"of archives only those .* not compressed and called NAME\.tar", open_image, "a.TGZ", kind=ImageError)


def test_an_archive_without_images_is_a_wrong_path(tmp_path: Path) -> None:
    refuses("no images in this archive", find_images, [write_tar(tmp_path / "a.tar", {"readme.txt": b"hello"})])
    refuses("no images in this archive", find_images, [write_tar(tmp_path / "empty.tar", {})])


def test_an_archive_that_changes_is_read_anew(shard: Path) -> None:
    assert names(shard)[0] == "shard.tar/000.png"
    write_tar(shard, {"new.png": png_of(9)})
    os.utime(shard, ns=(1, 1))
    assert names(shard) == ["shard.tar/new.png"]
    refuses(r"shard\.tar/000\.png: no such file", open_image, "shard.tar/000.png", kind=ImageError)


def test_a_list_names_images_and_archives(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quarters().save("a.png")
    Path("list.txt").write_bytes(b"a.png\n\r\nshard.tar\r\ngone.png\n")
    assert names("@list.txt") == ["a.png", *names(shard), "gone.png"]
    done = {one.source.name: one.error for one in describe_images(StubModel(), find_images(["@list.txt"]))}
    assert [name for name, error in done.items() if error] == ["gone.png"] and done["gone.png"] == "no such file"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a.png\nshard.tar/001.png\n")))
    assert names("@-") == ["a.png", "shard.tar/001.png"]
    refuses("@none: this list cannot be read", find_images, ["@none"])
    Path("@a.png").write_bytes(b"")
    assert names("@a.png") == ["@a.png"], "a file that is there is no list"
