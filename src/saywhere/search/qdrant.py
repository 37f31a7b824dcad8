"""A store in a Qdrant cluster: a point for each image, whose vectors the servers compare where they lie.

The similarity of Eq. 8, the sum over the words of their best region, is what Qdrant calls MAX_SIM. Nothing is
approximated: without a graph (``m`` is 0) the servers compare all that they have. What an image needs to be shown and
brought up to date is the payload of its point.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import numpy as np

from saywhere.errors import UserError
from saywhere.models.aligner import ImageVectors, over_regions
from saywhere.search.scan import VECTOR, Question, lead, spread, to_arrays, with_hubness, without_hubness
from saywhere.search.stores import Found, Located, Only, Stamp, Video, split_moment, undated

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models


REGIONS = "regions"
"""Name of the vectors of a point."""
IMAGE, MOMENT, VIDEO = "image", "moment", "video"
"""What a point is; that of a video has no vectors, and says how far it was looked through."""
NAMESPACE = uuid.UUID("5a1b7f0e-6c1d-4a52-9d0c-3f4f2f3f8f11")
BYTES = "bytes:"
"""Before the path of a file, in hexadecimal digits, that is no text."""


def point_id(name: str) -> str:
    """Return the id of an image, a moment or a video, which is the same for every writer."""
    return str(uuid.uuid5(NAMESPACE, path_to_text(name)))


def path_to_text(path: str) -> str:
    """Return a path as JSON and databases can have it: one that is not UTF-8 by its bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return BYTES + os.fsencode(path).hex()
    return path


def text_to_path(text: str) -> str:
    """Return the path that :func:`path_to_text` was given."""
    return os.fsdecode(bytes.fromhex(text.removeprefix(BYTES))) if text.startswith(BYTES) else text


def path_of(payload: Mapping[str, Any]) -> str:
    """Return the path that a payload has."""
    return text_to_path(payload["path"])


def stamp_fields(stamp: Stamp) -> dict[str, Any]:
    """Return a stamp as a part of a payload."""
    fields = {"size": stamp.size, "changed": stamp.time, "hash": stamp.hash.hex()}
    return {**fields, "taken": stamp.taken} if stamp.taken else fields


def stamp_of(payload: Mapping[str, Any]) -> Stamp:
    """Return the stamp that a payload has."""
    return Stamp(payload["size"], payload["changed"], bytes.fromhex(payload["hash"]), payload.get("taken", ""))


def image_point(name: str, stamp: Stamp, image: ImageVectors) -> models.PointStruct:
    """Return the point of an image, or of a moment of a video.

    Raises:
        UserError: a vector has numbers that half precision cannot hold.
    """
    from qdrant_client import models

    path, time = split_moment(name)
    _, regions, vectors = to_arrays(image)
    payload = {
        "kind": IMAGE if time is None else MOMENT, "path": path_to_text(path), "time": time,
        "width": image.width, "height": image.height, "boxes": regions["box"].tolist(),
        "logits": regions["logit"].tolist(), "nouns": regions["nouns"].tolist(), **stamp_fields(stamp),
    }  # fmt: skip
    return models.PointStruct(id=point_id(name), vector={REGIONS: vectors.astype(np.float32).tolist()}, payload=payload)


def image_of(point: models.Record | models.ScoredPoint) -> tuple[ImageVectors, float | None]:
    """Return the image of a point, and of a moment its seconds."""
    payload, vectors = point.payload or {}, point.vector
    assert isinstance(vectors, dict)
    boxes, logits = (np.array(payload[key], np.float32) for key in ("boxes", "logits"))
    rows, hubness = without_hubness(np.array(vectors[REGIONS], VECTOR).astype(np.float32))
    nouns = np.array(payload["nouns"], np.uint16) if "nouns" in payload else None
    image = ImageVectors(payload["width"], payload["height"], boxes, rows, path_of(payload), logits, hubness, nouns)
    return image, payload["time"]


def video_point(video: Video) -> models.PointStruct:
    """Return the point of a video."""
    from qdrant_client import models

    state = video.row()[-1]
    payload = {"kind": VIDEO, "path": path_to_text(video.path), **stamp_fields(video.stamp), "state": state}
    return models.PointStruct(id=point_id(video.path), vector={}, payload=payload)


def video_of(payload: Mapping[str, Any]) -> Video:
    """Return the video of a payload."""
    stamp = stamp_of(payload)
    return Video.of(os.fsencode(path_of(payload)), stamp.size, stamp.time, stamp.hash, payload["state"])


VERSION = "2"
"""Version of the payloads; others are refused."""
MARK = "saywhere"
"""In the metadata of a collection that is an index: its version."""
PATIENCE = 300
"""Seconds that an answer may take."""
TOGETHER = 32
"""Images that are written by one request: some 10 MB."""
SAMPLE = 200
"""Images that stand for all when similarities are compared with their mean."""
PAGE = 1000
"""Points that are asked for by one request."""
_CREDENTIALS = re.compile(r"(?!path:)((?:[a-z][a-z0-9+.-]*:)?//)?(.*)@", re.IGNORECASE | re.DOTALL)
"""At the beginning of a URL: the scheme, then user and password up to the last ``@``, for a password may have one."""


def masked(url: str) -> str:
    """Return a URL as it may be shown: without the user and the password that are in it."""
    return _CREDENTIALS.sub(r"\1***@", url, count=1) if _CREDENTIALS.match(url) else url


@dataclass(frozen=True)
class Qdrant:
    """Location of an index: a collection in Qdrant.

    Args:
        url: of a server. ``path:DIR`` and ``:memory:`` stand for the client's own engine, which holds all vectors in
            the memory of this process: for trials.
        collection: its name.
        shards, replicas: of a new collection; as the servers are configured if None.
        api_key: if None, what the environment has as ``QDRANT_API_KEY``.

    Example:
        >>> with saywhere.Index(saywhere.search.Qdrant("http://localhost:6333", "holiday")) as index:
        ...     print(index.add("holiday/"))
    """

    url: str
    collection: str = "saywhere"
    shards: int | None = None
    replicas: int | None = None
    api_key: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{masked(self.url)} ({self.collection})"

    def __repr__(self) -> str:
        return f"Qdrant({masked(self.url)!r}, {self.collection!r})"

    def _reason(self, error: object) -> str:
        """What an error says; nothing if it says what is not to be shown of the URL."""
        text, known = str(error).replace(self.url, masked(self.url)), _CREDENTIALS.match(self.url)
        secrets = {part for part in re.split("[:@/]", known[2]) if part} if known else set[str]()
        return type(error).__name__ if any(part in text for part in secrets) else text

    @property
    def folder(self) -> None:
        """There is none."""

    @property
    def is_served(self) -> bool:
        """Whether a server has it, and not the client's own engine."""
        return "://" in self.url

    def exists(self) -> bool:
        """Return whether there is a collection of this name."""
        kind, _, folder = self.url.partition(":")
        if kind == "path" and not (Path(folder) / "meta.json").is_file():
            return False  # the client would make the folder
        with self.asking() as client:
            return client.collection_exists(self.collection)

    def open(self, facts: Mapping[str, str] | None = None) -> QdrantStore:
        """Return the store; arguments and errors are those of :class:`QdrantStore`."""
        return QdrantStore(self, facts)

    def delete(self) -> None:
        """Remove the collection."""
        with self.asking() as client:
            client.delete_collection(self.collection)

    @cached_property
    def _client(self) -> QdrantClient:
        try:
            from qdrant_client import QdrantClient
        except ModuleNotFoundError:
            way_out = "which is not installed: pip install 'saywhere[qdrant]'"
            raise UserError(f"an index in Qdrant needs qdrant-client, {way_out}") from None
        kind, _, folder = self.url.partition(":")
        try:
            if self.url == ":memory:":
                return QdrantClient(self.url)
            if kind == "path" and folder:
                _require_vectors(Path(folder), self.collection)
                return QdrantClient(path=folder, force_disable_check_same_thread=True)
            if not self.is_served:
                raise ValueError("not a URL, such as http://localhost:6333; for trials path:DIR or :memory:")
            key = self.api_key or os.environ.get("QDRANT_API_KEY")
            options: dict[str, Any] = {"timeout": PATIENCE, "check_compatibility": False}
            return QdrantClient(url=self.url, api_key=key, headers=self._authorization(), **options)
        except UserError:
            raise
        except (ValueError, RuntimeError, OSError, KeyError, TypeError, sqlite3.Error) as error:
            raise UserError(f"{masked(self.url) or '--url'}: cannot be opened ({self._reason(error)})") from error

    def _authorization(self) -> dict[str, str]:
        """The header for the user and the password in the URL, which the client would drop."""
        known = _CREDENTIALS.match(self.url)
        if known is None:
            return {}
        return {"Authorization": f"Basic {base64.b64encode(unquote_to_bytes(known[2])).decode()}"}

    @contextlib.contextmanager
    def asking(self) -> Iterator[QdrantClient]:
        """Yield the client, whose errors become those that a user knows."""
        client = self._client
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        try:
            yield client
        except UserError:
            raise
        except (ValueError, sqlite3.Error) as error:  # of the client's own engine
            raise UserError(f"{self}: {self._reason(error)}") from error
        except ResponseHandlingException as error:
            raise UserError(f"{masked(self.url)}: no Qdrant server answers ({self._reason(error.source)})") from error
        except UnexpectedResponse as error:
            answer = self._reason(_answer(error.content))
            raise UserError(f"{masked(self.url)}: the server answers {error.status_code}, {answer}") from error

    def close(self) -> None:
        """Let go of the connections; they are made anew when they are needed."""
        client = self.__dict__.pop("_client", None)
        if client is not None:
            client.close()


def _require_vectors(folder: Path, collection: str) -> None:
    """Refuse a folder of the client's own engine that has lost a collection, which the client would show as empty.

    Raises:
        UserError: it has.
    """
    known = folder / "meta.json"
    points = folder / "collection" / collection / "storage.sqlite"
    if known.is_file() and collection in json.loads(known.read_text())["collections"] and not points.is_file():
        raise UserError(f"{points}: is missing, and with it all images; remove {folder} and index them again")


def _answer(content: bytes) -> str:
    """What an answer says in Qdrant's form, or the beginning of another one, in a line."""
    try:
        return str(json.loads(content)["status"]["error"])
    except (ValueError, KeyError, TypeError):
        return " ".join(content.decode(errors="replace").split())[:200] or "without a reason"


class QdrantStore:
    """Keep the vectors of images in a collection of Qdrant, see :class:`saywhere.search.stores.ImageStore`.

    The points of the same images are the same whoever writes them, so that several processes may write at a time.

    Args:
        place: of the collection.
        facts: what a new one is made for. If None, it must exist.

    Raises:
        UserError: there is none, it is not an index of this version, or no server answers.
    """

    folder = None

    def __init__(self, place: Qdrant, facts: Mapping[str, str] | None = None) -> None:
        self._place, self._name = place, place.collection
        if facts is None and not place.exists():
            where = f"--store qdrant --url {masked(place.url)} --collection {self._name}"
            raise UserError(f"{place}: no index is here; make one: saywhere index PATH... {where}")
        with place.asking() as client:
            if facts is not None and not client.collection_exists(self._name):
                self._create(client, facts)
            known = client.get_collection(self._name).config.metadata or {}
        if known.get(MARK) != VERSION:
            raise UserError(
                f"{place}: is not an index of format {VERSION} (it says {known.get(MARK)}); give another --collection; "
                "servers before Qdrant 1.16 keep no formats"
            )
        self.facts = {name: str(value) for name, value in known.items()}

    def _create(self, client: QdrantClient, facts: Mapping[str, str]) -> None:
        from qdrant_client import models

        vectors = models.VectorParams(
            size=int(facts["size"]),
            distance=models.Distance.DOT,
            datatype=models.Datatype.FLOAT16,
            on_disk=True,
            multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
            hnsw_config=models.HnswConfigDiff(m=0),
        )
        client.create_collection(
            self._name, {REGIONS: vectors}, shard_number=self._place.shards,
            replication_factor=self._place.replicas, metadata={MARK: VERSION, **facts},
        )  # fmt: skip
        if self._place.is_served:  # the client's own engine has no use for them
            for key in ("path", "kind"):
                client.create_payload_index(self._name, key, models.PayloadSchemaType.KEYWORD)

    # Reading

    def __len__(self) -> int:
        with self._place.asking() as client:
            return client.count(self._name, _matching("kind", (IMAGE, MOMENT)), exact=True).count

    def __contains__(self, name: str) -> bool:
        return bool(self._retrieve([name]))

    def load(self, name: str) -> ImageVectors | None:
        """Return an image, or a moment, as it was embedded; None if it is not in the index."""
        found = self._retrieve([name], [REGIONS])
        return image_of(found[0])[0] if found and found[0].vector else None

    def locate(self, entry: str) -> Located | None:
        """Return what an entry is, see :class:`saywhere.search.stores.ImageStore`."""
        payload = self._payload(entry) if _is_id(entry) else None
        if payload is None or payload["kind"] == VIDEO:
            return None
        path, time = path_of(payload), payload["time"]
        file = payload if time is None else self._payload(point_id(path))
        return None if file is None else Located(path, time, stamp_of(file))

    def _payload(self, point: str) -> dict[str, Any] | None:
        with self._place.asking() as client:
            found = client.retrieve(self._name, [point], with_payload=True, with_vectors=False)
        return found[0].payload if found else None

    def _retrieve(self, names: Sequence[str], vectors: Sequence[str] = ()) -> list[models.Record]:
        with self._place.asking() as client:
            ids = [point_id(name) for name in names]
            return client.retrieve(self._name, ids, with_payload=bool(vectors), with_vectors=list(vectors))

    def nearest(
        self, question: Question, top: int, *, exact: bool = False, threads: int = 1, only: Only | None = None
    ) -> list[Found]:
        """Return the images that fit best, see :class:`saywhere.search.stores.ImageStore`.

        Which images are searched is decided here, and not by the servers: they are asked for more until there are
        enough.
        """
        if question.score != "max":
            raise UserError(f"{self._place}: Qdrant does not know the score {question.score!r} of this model")
        words, most = question.words * question.weights, top
        dates = self._taken() if only is not None and only.dated else {}
        while True:
            points = self._query(words, most)
            some = [
                p for p in points if only is None or only.accepts(path := path_of(p.payload or {}), dates.get(path, ""))
            ]
            if len(some) >= top or len(points) < most:
                break
            most *= 4
        with self._place.asking() as client:
            chosen = [point.id for point in some[:top]]
            points = client.retrieve(self._name, chosen, with_payload=True, with_vectors=[REGIONS]) if chosen else []
        named = [(*image_of(point), str(point.id)) for point in points]
        everyday, among = spread(np.array([_similarity(image, question) for image in self._sample])), len(self)
        values = [_similarity(image, question) for image, _, _ in named]
        found = [
            Found(value, image, time, entry, lead(value, *everyday), among)
            for value, (image, time, entry) in zip(values, named, strict=True)
        ]
        return sorted(found, key=lambda row: -row.similarity)

    @cached_property
    def _sample(self) -> list[ImageVectors]:
        """Some of the images, with which those that are found are compared."""
        with self._place.asking() as client:
            points, _ = client.scroll(self._name, _matching("kind", (IMAGE, MOMENT)), SAMPLE, with_payload=True,
                                      with_vectors=[REGIONS])  # fmt: skip
        return [image_of(point)[0] for point in points]

    def _taken(self) -> dict[str, str]:
        """When each file was taken.

        Raises:
            UserError: that is not known of all.
        """
        files = self.stamps() | {path: video.stamp for path, video in self.videos().items()}
        if count := sum(not stamp.taken for stamp in files.values()):
            raise undated(self._place, count)
        return {path: stamp.taken for path, stamp in files.items()}

    def _query(self, words: np.ndarray, most: int) -> list[models.ScoredPoint]:
        """The points that fit words best, with their paths."""
        from qdrant_client import models

        with self._place.asking() as client:
            return client.query_points(
                self._name, query=words.tolist(), using=REGIONS, limit=most, with_payload=["path"],
                query_filter=_matching("kind", (IMAGE, MOMENT)),
                search_params=models.SearchParams(exact=True) if self._place.is_served else None,
            ).points  # fmt: skip

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamp of every image, by its path; moments have none."""
        return {path_of(payload): stamp_of(payload) for payload in self._payloads(IMAGE)}

    def videos(self) -> dict[str, Video]:
        """Return the videos, by their paths."""
        found = map(video_of, self._payloads(VIDEO))
        return {video.path: video for video in found}

    def _payloads(self, kind: str) -> Iterator[dict[str, Any]]:
        """What brings points of a kind up to date."""
        fields, offset = ["path", "size", "changed", "hash", "state", "taken"], None
        while True:
            with self._place.asking() as client:
                points, offset = client.scroll(self._name, _matching("kind", [kind]), PAGE, offset=offset,
                                               with_payload=fields)  # fmt: skip
            yield from (point.payload or {} for point in points)
            if offset is None:
                return

    # Writing

    def put(self, images: Sequence[tuple[str, Stamp, ImageVectors]], video: Video | None = None) -> None:
        """Add images, in place of those of the same name; at the end what is said of the video."""
        points = [image_point(*image) for image in images]
        if video is not None:
            points.append(video_point(video))
        for start in range(0, len(points), TOGETHER):
            with self._place.asking() as client:
                client.upsert(self._name, points[start : start + TOGETHER], wait=True)

    def remove(self, paths: Iterable[str]) -> int:
        """Forget images, and videos with all their moments; return how many of the paths were there."""
        from qdrant_client import models

        names, count = list(paths), 0
        for start in range(0, len(names), PAGE):
            some = names[start : start + PAGE]
            count += len(self._retrieve(some))
            with self._place.asking() as client:
                client.delete(
                    self._name, models.FilterSelector(filter=_matching("path", [path_to_text(name) for name in some]))
                )
        return count

    def restamp(self, stamps: Mapping[str, Stamp]) -> None:
        """Note the stamps of images and videos whose content is as it was."""
        with self._place.asking() as client:
            for path, stamp in stamps.items():
                client.set_payload(self._name, stamp_fields(stamp), points=[point_id(path)])

    def tidy(self) -> None:
        """Do nothing: killed runs leave only whole points."""

    def settle(self, components: int | None = None) -> None:
        """Do nothing: the servers do what is to be done, and have no codes."""

    def repair(self) -> int:
        """Do nothing: the servers repair their replicas."""
        return 0

    def close(self) -> None:
        """Let go of the connections."""
        self._place.close()

    def __enter__(self) -> QdrantStore:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _matching(key: str, values: Sequence[str]) -> models.Filter:
    from qdrant_client import models

    return models.Filter(must=[models.FieldCondition(key=key, match=models.MatchAny(any=list(values)))])


def _is_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _similarity(image: ImageVectors, question: Question) -> float:
    products = with_hubness(image) @ question.words.T
    return float((over_regions(products, [len(image)], question.score) @ question.weights)[0, 0])
