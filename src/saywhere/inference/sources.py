"""Selection of input images, and of boxes in them."""

from __future__ import annotations

import codecs
import glob
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhere.errors import UserError
from saywhere.files import DRAWN_SUFFIXES, TAR, decode, parse_json, read_whole, split_lines
from saywhere.images import SUFFIXES
from saywhere.report import counted

_SEPARATORS = re.compile(f"[{re.escape(os.sep + (os.altsep or ''))}]+")

LIST = "@"
"""Prefix of a file that lists paths, one per line; ``@-`` is standard input."""

VIDEO_SUFFIXES = frozenset((
    ".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".mts", ".m2ts", ".ogv",
))  # fmt: skip
"""File extensions of videos."""
WITH_VIDEOS = (
    "saywhere describe --every TIME, such as --every 0.5s, and saywhere index read videos in folders; "
    "saywhere caption reads each by its name"
)
"""Advice to users about videos in folders."""


@dataclass(frozen=True, slots=True)
class Source:
    """An input image.

    Attributes:
        path: file path; ``shard.tar/a.jpg`` is in an archive.
        name: path as the user gave it, or below the folder that the user gave; ``image`` in the results.
        relative: path relative to the common folder of all inputs.
        ending: suffix appended to ``relative`` for the path of the drawing below an output folder.
    """

    path: Path
    name: str
    relative: Path
    ending: str = ""

    @property
    def is_video(self) -> bool:
        """Whether the file is a video, by its extension."""
        return self.path.suffix.lower() in VIDEO_SUFFIXES


class NoImages(UserError):
    """A folder, pattern or list without images, which may get some later."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


def list_paths(**given: Any) -> list[Any]:
    """Return the paths or sources of the one named argument, which is one or several; ``UserError`` for others."""
    ((name, value),) = given.items()
    paths = [value] if isinstance(value, str | Path) or not isinstance(value, Iterable) else list(value)
    for each in paths:
        if not isinstance(each, str | Path | Source):
            raise UserError(f"{name} must be a path or several, not {type(each).__name__}")
    return paths


def results_path(json: Any) -> Path | None:
    """Return the path of a results file; ``UserError`` for ``-``, by which only commands print, or for no path."""
    if str(json) == "-":
        raise UserError("json='-': only commands print lines; name a file, or give each=")
    return optional_path(json=json)


def optional_path(**given: Any) -> Path | None:
    """Return the one named argument as a path, or None if it is None; ``UserError`` for others."""
    ((name, value),) = given.items()
    if not isinstance(value, str | Path | None):
        raise UserError(f"{name} must be a path, not {type(value).__name__}")
    return None if value is None else Path(value)


def find_images(
    paths: Sequence[str | Path], leave_out: Iterable[Path] = (), suffixes: frozenset[str] = SUFFIXES
) -> list[Source]:
    """Return the images that ``paths`` stand for.

    A path is a file; a folder (recursive, sorted); a glob pattern such as ``a/*.jpg``; a tar archive (all its images in
    order; also as a match of a pattern, but not within a folder); or ``@list.txt``, a file with the path of an image or
    archive on each line. Hidden files and folders, links to folders, and folders in ``leave_out`` (for results) are
    skipped. Duplicates count once. A damaged archive yields itself as an unreadable image, besides its readable ones;
    so does a subfolder that cannot be read. Files of a list are not checked here. In folders, files with an extension
    in ``suffixes`` count. ``UserError`` if a path does not exist or has no images, or a folder or list cannot be read.
    """
    found, roots = name_images(paths, leave_out, suffixes)
    roots |= {os.path.dirname(full) for full in found}  # a pattern with .. finds images outside its root
    common = os.path.commonpath(roots) if roots else ""
    places = [Path(os.path.relpath(full, common)) for full in found]
    named = zip(found.values(), places, _endings(places), strict=True)
    return [Source(Path(name), name, place, ending) for name, place, ending in named]


def find_media(
    paths: Sequence[str | Path], leave_out: Iterable[Path] = (), in_folders: bool = False
) -> tuple[list[Source], list[Source]]:
    """Return the images and the videos that ``paths`` stand for, see :func:`find_images`.

    Args:
        in_folders: also return videos in folders.

    Raises:
        UserError: there is nothing, or only videos in a folder without ``in_folders``.
    """
    found = find_images(paths, leave_out, SUFFIXES | VIDEO_SUFFIXES if in_folders else SUFFIXES)
    return [source for source in found if not source.is_video], [source for source in found if source.is_video]


def note_videos(paths: Sequence[str | Path], leave_out: Iterable[Path] = ()) -> str | None:
    """Return a line on the videos in folders, which :func:`find_images` skips; None if there are none."""
    hidden = {_absolute(folder) for folder in leave_out}
    folders = [str(path) for path in paths if os.path.isdir(path)]
    names = dict.fromkeys(name for folder in folders for name in _walk(folder, hidden, VIDEO_SUFFIXES))
    films = [name for name in names if os.path.splitext(name)[1].lower() in VIDEO_SUFFIXES]  # and no closed folder
    if not films:
        return None
    more = f" and {counted(len(films) - 1, 'other video')}" if len(films) > 1 else ""
    return f"skipped: {films[0]}{more}; {WITH_VIDEOS}"


def name_images(
    paths: Sequence[str | Path], leave_out: Iterable[Path] = (), suffixes: frozenset[str] = SUFFIXES
) -> tuple[dict[str, str], set[str]]:
    """Return image names by absolute path, and the folders that contain them.

    Arguments and errors as :func:`find_images`. A hundred thousand images take about a second.
    """
    hidden = {_absolute(folder) for folder in leave_out}
    found: dict[str, str] = {}
    roots: set[str] = set()
    folders: dict[str, str] = {}
    for path in paths:
        names, root = _expand(str(path), hidden, suffixes)
        if root is not None:
            roots.add(_absolute(root))
        for name in names:
            folder, base = os.path.split(name)
            if folder not in folders:
                folders[folder] = os.path.join(_absolute(folder), "")
            found.setdefault(folders[folder] + base, name)
    return found, roots


def named_source(name: str) -> Source:
    """Return the source for a single image of this name."""
    return Source(Path(name), name, Path(os.path.basename(name)))


def _absolute(folder: str | Path) -> str:
    """Return the absolute folder; links are resolved only where ``..`` requires it."""
    return os.path.abspath(folder) if _is_plain(str(folder)) else os.path.realpath(folder)


def _tidy(name: str) -> str:
    """Return ``name`` without ``.`` and ``x/..``, unless that would be another file."""
    return os.path.normpath(name) if _is_plain(name) else name


def _is_plain(name: str) -> bool:
    """Return whether ``x/..`` can be removed from ``name`` without changing the file it leads to, because of links."""
    if ".." not in name or ".." not in Path(name).parts:
        return True
    return os.path.realpath(os.path.normpath(name)) == os.path.realpath(name)


def _endings(places: Sequence[Path]) -> list[str]:
    """Return the suffix for each drawing that keeps drawings distinct from one another and from folders."""
    kept = {place for place in places if place.suffix.lower() in DRAWN_SUFFIXES}
    taken = kept | {folder for place in places for folder in place.parents}
    endings = []
    for place in places:
        ending = ""
        if place not in kept:
            ending = ".jpg"
            while place.with_name(place.name + ending) in taken:
                ending += ".jpg"
            taken.add(place.with_name(place.name + ending))
        endings.append(ending)
    return endings


def _expand(path: str, hidden: set[str], suffixes: frozenset[str]) -> tuple[list[str], str | None]:
    """Return the image names of one argument, and the folder that contains them, if there is one."""
    if os.path.isdir(path):
        if names := _walk(path, hidden, suffixes):
            return names, path
        if suffixes == SUFFIXES and (videos := _walk(path, hidden, VIDEO_SUFFIXES)):
            raise NoImages(path, f"no images in this folder, but videos such as {videos[0]}; {WITH_VIDEOS}")
        raise NoImages(path, f"no images in this folder ({', '.join(sorted(suffixes))}){_archives_in(path)}")
    if os.path.lexists(path) or _is_member(path):
        if names := _members(path):
            return names, os.path.dirname(path) or "."
        raise UserError(f"{path}: no images in this archive ({', '.join(sorted(SUFFIXES))})")
    if path.startswith(LIST):
        if names := [name for line in _lines(path[len(LIST) :]) for name in _members(line)]:
            return names, None
        raise NoImages(path, "this list names no image")
    if not glob.has_magic(path):
        raise UserError(f"{path}: no such file or folder")
    names, (fixed, pattern) = [], split_pattern(path)
    matches = glob.glob(os.path.join(glob.escape(fixed), pattern), recursive=True)
    if not matches and "[" in pattern:  # a name such as IMG*[1].jpg, whose brackets are no choice of characters
        matches = glob.glob(os.path.join(glob.escape(fixed), pattern.replace("[", "[[]")), recursive=True)
    if "**" in pattern:
        matches = [match for match in matches if not _passes_link(match, fixed)]
    for match in sorted(matches):
        if not os.path.isdir(match):
            names.extend(_members(match))
        elif not path.endswith("**"):  # ** already matches everything below each folder
            names.extend(_walk(match, hidden, suffixes))
    if not names:
        raise NoImages(path, "no file matches this pattern")
    return names, fixed or "."


def _passes_link(path: str, fixed: str) -> bool:
    """Return whether a path, or a folder of it below the folder ``fixed``, is a link to a folder."""
    ends = [match.start() for match in _SEPARATORS.finditer(path, len(fixed))]
    return any(os.path.islink(path[:end]) for end in ends) or (os.path.islink(path) and os.path.isdir(path))


def split_pattern(path: str) -> tuple[str, str]:
    """Split a pattern after its folders without wildcards, or whose names have brackets: ``a[1]`` and ``*.jpg``."""
    fixed, rest = "", path
    while separator := _SEPARATORS.search(rest):
        folder = fixed + rest[: separator.start()]
        if glob.has_magic(folder[len(fixed) :]) and not os.path.isdir(folder):
            break
        fixed, rest = fixed + rest[: separator.end()], rest[separator.end() :]
    return fixed, rest


def _members(path: str) -> list[str]:
    """Return the images of an archive, plus the archive itself if it is damaged; for other files the path."""
    name = _tidy(path)
    if not path.endswith(TAR):
        return [name]
    from saywhere import archives

    if not archives.is_archive(path):
        return [name]
    try:
        listing = archives.list_archive(path)
    except OSError:
        return [name]  # the error is reported when it is opened
    named = (*listing.members, *listing.broken)
    images = [member for member in named if os.path.splitext(member)[1].lower() in SUFFIXES]
    return [os.path.join(name, member) for member in images] + ([name] if listing.damage else [])


def _is_member(path: str) -> bool:
    if f"{TAR}/" not in path:
        return False
    from saywhere import archives

    return archives.has_member(path)


def _archives_in(folder: str) -> str:
    """Return advice for a user who gave a folder of archives."""
    pattern = os.path.join(folder, f"*{TAR}")
    return f"; for the archives in it give the pattern {pattern!r}" if glob.glob(pattern) else ""


def _lines(file: str) -> list[str]:
    """Return the nonempty lines of a list."""
    try:
        data = read_whole(file, sys.stdin.buffer if file == "-" else None)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{LIST}{file}: this list cannot be read ({reason})") from error
    if b"\0" in data:
        raise UserError(f"{LIST}{file}: this list is not text with a path on each line, for it has NUL bytes")
    lines = data.removeprefix(codecs.BOM_UTF8).split(b"\n")
    return [os.fsdecode(line.rstrip(b"\r")) for line in lines if line.strip()]


def _walk(folder: str, hidden: set[str], suffixes: frozenset[str]) -> list[str]:
    names: list[str] = []

    def note(error: OSError) -> None:
        if error.filename == folder:
            raise UserError(f"{folder}: this folder cannot be read ({error.strerror})")
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # otherwise removed after it was listed
            names.append(_tidy(error.filename))  # the error is reported when it is opened

    for place, folders, files in os.walk(folder, onerror=note):
        kept = [name for name in folders if not name.startswith(".")]
        folders[:] = sorted(name for name in kept if _absolute(os.path.join(place, name)) not in hidden)
        images = [name for name in files if os.path.splitext(name)[1].lower() in suffixes and name[0] != "."]
        names.extend(_tidy(os.path.join(place, name)) for name in images)
    return sorted(names)


def out_path(folder: Path, source: Source) -> Path:
    """Return the path of the drawing, with its suffix; ``ValueError`` if it would not be below ``folder``."""
    if source.relative.is_absolute() or ".." in source.relative.parts:
        raise ValueError(f"{source.relative} is not a place below {folder}")
    return folder / source.relative.with_name(source.relative.name + source.ending)


def read_boxes(file: Path, sources: Sequence[Source]) -> dict[str, list[Any]]:
    """Return the boxes to describe by image name, from JSON lines, or from a single list for a single image.

    A line is ``{"image": NAME, "boxes": [[x1, y1, x2, y2], ...]}``; NAME is the image as given to the command, or
    relative to the folder. Images without boxes are left out. Boxes are checked later, with their image. ``UserError``
    if the file cannot be read, a line is malformed, or no image has boxes.
    """
    try:
        text = decode(read_whole(file))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    whole = _whole_list(text)
    if whole is not None:
        if len(sources) != 1:
            raise UserError(f"{file}: one list of boxes is for one image, not {len(sources)}; name them in JSON lines")
        return {sources[0].name: whole}
    given: dict[str, list[Any]] = {}
    for number, line in enumerate(split_lines(text), 1):
        if line.strip():
            row = _row(line, f"{file} line {number}")
            given.setdefault(os.path.normpath(row["image"]), []).extend(row["boxes"])
    answer = {}
    for source in sources:
        for name in (source.name, str(source.relative)):
            if name in given:
                answer[source.name] = given[name]
                break
    if not answer:
        example = f"; it names {next(iter(given))!r}, the image is {sources[0].name!r}" if given and sources else ""
        raise UserError(f"{file}: of {counted(len(sources), 'image')} none has boxes in it{example}")
    return answer


def _whole_list(text: str) -> list[Any] | None:
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, list) else None


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = parse_json(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from error
    if not isinstance(row, dict) or not isinstance(row.get("image"), str) or not isinstance(row.get("boxes"), list):
        raise UserError(f'{where}: not {{"image": NAME, "boxes": [[x1, y1, x2, y2], ...]}}')
    return row
