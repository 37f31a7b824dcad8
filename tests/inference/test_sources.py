from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest
from refusals import refuses

from saywhere.errors import UserError
from saywhere.images import open_image
from saywhere.inference import Source, find_images, out_path, read_boxes
from saywhere.regions import check_boxes


def touch(*names: str) -> None:
    for path in map(Path, names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


@pytest.fixture
def album(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch("p/b.jpg", "p/a.PNG", "p/sub/b.jpg", "p/notes.txt", "p/.hidden.jpg", "p/.cache/x.jpg", "q/b.jpg")
    return tmp_path


def names(*paths, **options) -> list[str]:
    return [source.name for source in find_images(paths, **options)]


def drawn(*paths) -> dict[str, str]:
    """Where each image is drawn."""
    return {source.name: out_path(Path("out"), source).as_posix() for source in find_images(paths)}


def test_folders_are_searched_to_the_bottom_in_order_once_and_without_results(album):
    assert names("p") == ["p/a.PNG", "p/b.jpg", "p/sub/b.jpg"]
    assert names("p/", "q") == ["p/a.PNG", "p/b.jpg", "p/sub/b.jpg", "q/b.jpg"]
    assert names(album / "q") == [str(album / "q" / "b.jpg")]
    assert names("p/b.jpg", "p", album / "p" / "b.jpg") == ["p/b.jpg", "p/a.PNG", "p/sub/b.jpg"]
    assert names("p", leave_out=[Path("p/sub")]) == ["p/a.PNG", "p/b.jpg"]


def test_files_and_patterns(album):
    assert names("p/notes.txt", "./p/b.jpg") == ["p/notes.txt", "p/b.jpg"], "a file named by itself may have any ending"
    assert names("p/*.jpg") == ["p/b.jpg"]
    assert names("p/**/*.jpg") == ["p/b.jpg", "p/sub/b.jpg"]
    assert names("*") == ["p/a.PNG", "p/b.jpg", "p/sub/b.jpg", "q/b.jpg"]
    Path("p/odd[1].jpg").write_bytes(b"x")
    assert names("p/odd[1].jpg") == ["p/odd[1].jpg"], "a file that is there is no pattern"
    assert names("p/o*[1].jpg") == ["p/odd[1].jpg"], "a pattern that fits nothing has brackets of a name"
    touch("br[1]/a.jpg", "br[1]/x [2]/b.jpg", "br1/c.jpg")
    assert names("br[1]/*.jpg") == ["br[1]/a.jpg"], "a folder that is there is no pattern"
    assert names(album / "br[1]" / "x [2]" / "*.jpg") == [str(album / "br[1]" / "x [2]" / "b.jpg")]
    assert names("br[1-9]/*.jpg") == ["br1/c.jpg"]
    assert drawn("br[1]/*/*.jpg") == {"br[1]/x [2]/b.jpg": "out/x [2]/b.jpg"}


def test_links_to_folders_are_not_followed_unless_they_are_named(album):
    Path("p/up").symlink_to(album, target_is_directory=True)
    Path("side").symlink_to(album / "q", target_is_directory=True)
    assert names("p") == ["p/a.PNG", "p/b.jpg", "p/sub/b.jpg"]
    assert names("p/**/*.jpg") == ["p/b.jpg", "p/sub/b.jpg"]
    assert names("side/**/*.jpg") == names("s*e/*.jpg") == ["side/b.jpg"]
    assert names("p/**/*") == ["p/a.PNG", "p/b.jpg", "p/notes.txt", "p/sub/b.jpg"]
    refuses("no file matches", find_images, ["p/**/up"])


@pytest.mark.parametrize(
    ("path", "reason"),
    [("nowhere.jpg", "no such file"), ("empty", "no images in this folder"), ("p/*.tif", "no file matches")],
)
def test_what_is_not_there(album, path, reason):
    Path("empty").mkdir()
    assert refuses(reason, find_images, ["p", path]).startswith(path)


def test_a_folder_of_videos_alone_is_told_which_commands_take_them(album):
    Path("films").mkdir()
    for name in ("b.MP4", "c.mov"):
        Path("films", name).touch()
    refuses(r"^films: no images in this folder, but videos such as films/b\.MP4; .*index", find_images, ["p", "films"])


def test_a_folder_that_is_removed_while_it_is_searched_is_passed_over(tmp_path, monkeypatch):
    for name in ("a/1.png", "b/2.png"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    scan = os.scandir

    def remove_first(folder):
        if str(folder).endswith("a"):
            shutil.rmtree(folder)
        return scan(folder)

    monkeypatch.setattr(os, "scandir", remove_first)
    assert [source.path.name for source in find_images([tmp_path])] == ["2.png"]


def test_a_folder_below_that_may_not_be_read_is_an_image_that_cannot_be(album, monkeypatch):
    scan = os.scandir

    def forbid(folder):
        if str(folder).endswith("sub"):
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scan(folder)

    monkeypatch.setattr(os, "scandir", forbid)
    assert names("p") == ["p/a.PNG", "p/b.jpg", "p/sub"]
    refuses("^p/sub: this folder cannot be read .Permission denied.$", open_image, "p/sub")
    refuses("^p/sub: this folder cannot be read .Permission denied.$", find_images, ["p/sub"])


def test_drawn_images_keep_their_folders(album):
    assert [*drawn("p").values()] == ["out/a.PNG", "out/b.jpg", "out/sub/b.jpg"]
    assert [*drawn("p/sub/b.jpg").values()] == ["out/b.jpg"]
    assert [*drawn("p/b.jpg", "q/b.jpg").values()] == ["out/p/b.jpg", "out/q/b.jpg"]
    assert [*drawn("p/**/b.jpg").values()] == ["out/b.jpg", "out/sub/b.jpg"]
    touch("q/b.gif")
    assert [*drawn("q").values()] == ["out/b.gif.jpg", "out/b.jpg"]


def test_drawings_stay_in_their_folder(album, monkeypatch):
    """A pattern may leave the folder that it begins in, by ``..`` and through links."""
    touch("w/sub1/x.txt", "pics/a.jpg", "pics/deep/b.jpg", "other/place/x.txt", "other/a.jpg")
    monkeypatch.chdir("w")
    assert drawn("sub*/../../pics/*.jpg") == {"../pics/a.jpg": "out/pics/a.jpg"}
    assert drawn("sub*/../../pics/**/*.jpg") == {
        "../pics/a.jpg": "out/pics/a.jpg",
        "../pics/deep/b.jpg": "out/pics/deep/b.jpg",
    }
    assert drawn("../pics") == {"../pics/a.jpg": "out/a.jpg", "../pics/deep/b.jpg": "out/deep/b.jpg"}
    Path("link").symlink_to(album / "other" / "place")
    (found,) = find_images(["l*/../a.jpg"])
    assert found.path.samefile(album / "other" / "a.jpg"), "link/.. is not the folder that the link is in"
    assert out_path(Path("out"), found) == Path("out/other/a.jpg")


@pytest.mark.parametrize("relative", ["../a.jpg", "p/../../a.jpg", "/a.jpg"])
def test_a_place_outside_the_folder_is_refused(relative):
    with pytest.raises(ValueError, match="is not a place below out"):
        out_path(Path("out"), Source(Path("a.jpg"), "a.jpg", Path(relative)))


def test_no_two_drawings_meet(album):
    names = ("a.gif", "a.gif.jpg", "a.gif.jpg.jpg", "b.bmp", "c.gif", "c.gif.jpg/d.png", "photo.2.jpg")
    touch(*(f"r/{name}" for name in names))
    wanted = (f"{names[0]}.jpg.jpg.jpg", names[1], names[2], "b.bmp.jpg", "c.gif.jpg.jpg", *names[5:])
    assert drawn("r") == {f"r/{name}": f"out/{own}" for name, own in zip(names, wanted, strict=True)}


def test_a_list_or_boxes_without_an_end_are_refused(album, monkeypatch):
    if not Path("/dev/zero").exists():
        pytest.skip("there is no /dev/zero")
    refuses("^@/dev/zero: this list cannot be read .a device, not a file.$", find_images, ["@/dev/zero"])
    refuses("^/dev/zero: cannot be read .a device, not a file.$", read_boxes, Path("/dev/zero"), find_images(["p"]))
    monkeypatch.setattr("saywhere.files.LARGEST", 9)
    Path("list.txt").write_text("p/b.jpg\np\n")
    refuses("^@list.txt: this list cannot be read .longer than 9 bytes; divide it.$", find_images, ["@list.txt"])
    with open("/dev/zero") as endless, monkeypatch.context() as patch:
        patch.setattr("sys.stdin", endless)
        refuses("^@-: this list cannot be read .longer than 9 bytes", find_images, ["@-"])


def test_boxes_as_lines_and_as_one_list(album):
    file = album / "boxes.jsonl"
    rows = [{"image": "./p/b.jpg", "boxes": [[1, 2, 3, 4]]}, {"image": "sub/b.jpg", "boxes": []}]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert read_boxes(file, find_images(["p"])) == {"p/b.jpg": [[1, 2, 3, 4]], "p/sub/b.jpg": []}
    file.write_text("[[0, 0, 10, 10.5],\n [5, 5, 6, 6]]")
    assert read_boxes(file, find_images(["q"])) == {"q/b.jpg": [[0, 0, 10, 10.5], [5, 5, 6, 6]]}
    refuses("one list of boxes is for one image, not 3", read_boxes, file, find_images(["p"]))
    refuses("cannot be read", read_boxes, album / "nowhere.json", find_images(["q"]))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_mark_before_a_list_or_boxes_is_passed_over_and_lines_end_at_newlines(album, newline):
    Path("p/b\u2028c.jpg").write_bytes(b"x")
    listed = ["p/b.jpg", "p/b\u2028c.jpg"]
    Path("list.txt").write_text(newline.join(listed), encoding="utf-8-sig", newline="")
    assert names("@list.txt") == listed
    Path("empty.txt").write_text(newline, encoding="utf-8-sig", newline="")
    refuses(r"^@empty.txt: this list names no image$", names, "@empty.txt")
    rows = [{"image": name, "boxes": [[1, 2, 3, 4]]} for name in listed]
    text = newline.join(json.dumps(row, ensure_ascii=False) for row in rows)
    Path("boxes.jsonl").write_text(text, encoding="utf-8-sig", newline="")
    assert list(read_boxes(Path("boxes.jsonl"), find_images(["p"]))) == listed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"image": "q/b.jpg", "boxes": 3}', "line 1: not "),
        ('{"image": "q/b.jpg"}', "line 1: not "),
        ('{"image": "q/b.jpg", "boxes": []}\nnonsense', "line 2: not JSON"),
        ('{"image": "other.jpg", "boxes": []}', "of 1 image none has boxes in it; it names 'other.jpg'"),
        ('\n{"image": "q/b.jpg", "boxes": [[0, 0, 1, 1]], "boxes": []}', "line 2: not JSON .the key 'boxes' is there"),
        ('{"image": ' + "[" * 100_000, "line 1: not JSON .it is nested too deeply"),
        ("", "none has boxes in it"),
        ("\udcff", "cannot be read .not a UTF-8 text file"),
    ],
)
def test_a_malformed_file_of_boxes(album, text, reason):
    file = album / "boxes.json"
    file.write_bytes(os.fsencode(text))
    assert refuses(reason, read_boxes, file, find_images(["q"])).startswith(str(file))


@pytest.mark.parametrize(
    "boxes", ["[[1, 2, 3]]", "[[5, 5, 5, 9]]", "[[1, 2, NaN, 9]]", '[["x", 2, 3, 4]]', "[[1, 2, 3], [1, 2, 3, 4]]"]
)
def test_bad_boxes_are_left_to_their_image(album, boxes):
    """The file is sound JSON: whether its boxes fit is an error of their image and not of the run."""
    file = album / "boxes.json"
    file.write_text(boxes)
    (read,) = read_boxes(file, find_images(["q"])).values()
    refuses(r"q/b.jpg: box", check_boxes, read, 100, 100, "q/b.jpg")


def test_a_list_that_is_no_text_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "names").write_bytes(b"a.jpg\0b.jpg\0")
    with pytest.raises(UserError, match="names: this list is not text with a path on each line, for it has NUL bytes"):
        find_images([f"@{tmp_path / 'names'}"])
