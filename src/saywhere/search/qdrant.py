"""A store in a Qdrant cluster: one point per image, whose vectors are compared by the servers.

The similarity of Eq. 8, the sum over words of the best region, is Qdrant's MAX_SIM. The search is exact: without a
graph (``m`` is 0) the servers compare all points. The payload of a point has the data to show and update an image.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import uuid
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

import numpy as np

from saywhere.errors import UserError
from saywhere.models.aligner import ImageVectors, over_regions
from saywhere.models.nouns import log_kinds, packed_kinds
from saywhere.options import dataclass
from saywhere.search.scan import VECTOR, Question, leads, to_arrays, with_hubness, without_hubness
from saywhere.search.stores import Found, Located, Only, Stamp, Video, split_moment

if TYPE_CHECKING:
    from qdrant_client import QdrantClient, models


REGIONS = "regions"
"""Name of a point's vectors."""
IMAGE, MOMENT, VIDEO = "image", "moment", "video"
"""Kinds of points; that of a video has no vectors, and stores how far it was sampled."""
NAMESPACE = uuid.UUID("5a1b7f0e-6c1d-4a52-9d0c-3f4f2f3f8f11")
BYTES = "bytes:"
"""Prefix of a path that is not UTF-8, in hexadecimal."""


def point_id(name: str) -> str:
    """Return the id of an image, frame or video, equal for all writers."""
    return str(uuid.uuid5(NAMESPACE, path_to_text(name)))


def path_to_text(path: str) -> str:
    """Return a path as text for JSON and databases; a path that is not UTF-8 is encoded by its bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return BYTES + os.fsencode(path).hex()
    return path


def text_to_path(text: str) -> str:
    """Return the path that was given to :func:`path_to_text`."""
    return os.fsdecode(bytes.fromhex(text.removeprefix(BYTES))) if text.startswith(BYTES) else text


def _path_of(payload: Mapping[str, Any]) -> str:
    return text_to_path(payload["path"])


def _stamp_fields(stamp: Stamp) -> dict[str, Any]:
    """Return a stamp as part of a payload."""
    return {"size": stamp.size, "changed": stamp.time, "hash": stamp.hash.hex(), "taken": stamp.taken}


def _stamp_of(payload: Mapping[str, Any]) -> Stamp:
    return Stamp(payload["size"], payload["changed"], bytes.fromhex(payload["hash"]), payload["taken"])


def _image_of(point: models.Record | models.ScoredPoint) -> tuple[ImageVectors, float | None]:
    """Return the image of a point, and its time in seconds if it is a video frame."""
    payload, vectors = point.payload or {}, point.vector
    assert isinstance(vectors, dict)
    boxes, logits = (np.array(payload[key], np.float32) for key in ("boxes", "logits"))
    rows, hubness = without_hubness(np.array(vectors[REGIONS], VECTOR).astype(np.float32))
    nouns, size = np.array(payload["nouns"], np.uint16), (payload["width"], payload["height"])
    colours = np.array(payload["colours"], np.uint8)
    colours = colours if colours.any() else None
    return ImageVectors(*size, boxes, rows, _path_of(payload), logits, hubness, nouns, colours), payload["time"]


VERSION = "4"
"""Version of the payload format; others are refused."""
MARK = "saywhere"
"""Key of this version in the metadata of a collection that is an index."""
PATIENCE = 300
"""Timeout of a request in seconds."""
TOGETHER = 32
"""Number of images per write request: about 10 MB."""
SAMPLE = 200
"""Number of images used to estimate the mean similarity of all."""
PAGE = 1000
"""Number of points per read request."""
_CREDENTIALS = re.compile(r"((?:[a-z][a-z0-9+.-]*:)?//)?(.*)@", re.IGNORECASE | re.DOTALL)
"""Beginning of a URL: the scheme, then user and password up to the last ``@``, because passwords can contain one."""


def masked(url: str) -> str:
    """Return a URL without its user and password, for display."""
    return _CREDENTIALS.sub(r"\1***@", url, count=1) if _CREDENTIALS.match(url) else url


@dataclass(frozen=True)
class Qdrant:
    """Location of an index: a collection in Qdrant.

    Args:
        url: URL of a server, whose key is in the environment variable ``QDRANT_API_KEY``; or ``:memory:`` for the
            client's own engine in the memory of this process.

    Example:
        >>> with saywhere.Index(saywhere.search.Qdrant("http://localhost:6333", "holiday")) as index:
        ...     print(index.add("holiday/"))
    """

    url: str
    collection: str = "saywhere"

    def __str__(self) -> str:
        return f"{masked(self.url)} ({self.collection})"

    def __repr__(self) -> str:
        return f"Qdrant({masked(self.url)!r}, {self.collection!r})"

    def _reason(self, error: object) -> str:
        """Return the message of an error, or only its type if the message contains a secret part of the URL."""
        text, known = str(error).replace(self.url, masked(self.url)), _CREDENTIALS.match(self.url)
        secrets = {part for part in re.split("[:@/]", known[2]) if part} if known else set[str]()
        return type(error).__name__ if any(part in text for part in secrets) else text

    def exists(self) -> bool:
        """Return whether the collection exists."""
        with self.asking() as client:
            return client.collection_exists(self.collection)

    @cached_property
    def _client(self) -> QdrantClient:
        try:
            from qdrant_client import QdrantClient
        except ModuleNotFoundError:
            way_out = "which is not installed: pip install 'saywhere[qdrant]'"
            raise UserError(f"an index in Qdrant needs qdrant-client, {way_out}") from None
        try:
            if self.url == ":memory:":
                return QdrantClient(self.url)
            if "://" not in self.url:
                raise ValueError("not a URL, such as http://localhost:6333")
            known = _CREDENTIALS.match(self.url)  # the client would drop them
            headers = {"Authorization": f"Basic {b64encode(unquote_to_bytes(known[2])).decode()}"} if known else {}
            key, options = os.environ.get("QDRANT_API_KEY"), {"timeout": PATIENCE, "check_compatibility": False}
            return QdrantClient(url=self.url, api_key=key, headers=headers, **options)
        except ValueError as error:
            raise UserError(f"{masked(self.url) or '--url'}: cannot be opened ({self._reason(error)})") from error

    @contextlib.contextmanager
    def asking(self) -> Iterator[QdrantClient]:
        """Yield the client, and turn its errors into ``UserError``."""
        client = self._client
        from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

        try:
            yield client
        except UserError:
            raise
        except ValueError as error:  # by the client's own engine
            raise UserError(f"{self}: {self._reason(error)}") from error
        except ResponseHandlingException as error:
            raise UserError(f"{masked(self.url)}: no Qdrant server answers ({self._reason(error.source)})") from error
        except UnexpectedResponse as error:
            answer = self._reason(_answer(error.content))
            raise UserError(f"{masked(self.url)}: the server answers {error.status_code}, {answer}") from error

    def close(self) -> None:
        """Close the connections; they are opened again when needed."""
        client = self.__dict__.pop("_client", None)
        if client is not None:
            client.close()


def _answer(content: bytes) -> str:
    """Return Qdrant's error message from a response, or the beginning of any other response, as one line."""
    try:
        return str(json.loads(content)["status"]["error"])
    except (ValueError, KeyError, TypeError):
        return " ".join(content.decode(errors="replace").split())[:200] or "without a reason"


class QdrantStore:
    """Keep the vectors of images in a Qdrant collection, see :class:`saywhere.search.store.Store`.

    Several processes can write at the same time, because the ids of points depend only on the images.

    Args:
        facts: what a new index is made for. None: the index must exist.

    Raises:
        UserError: there is no index, it has another version, or no server answers.
    """

    folder = None

    def __init__(self, place: Qdrant, facts: Mapping[str, str] | None = None) -> None:
        self._place, self._name = place, place.collection
        if facts is None and not place.exists():
            where = f"--url {masked(place.url)} --collection {self._name}"
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
        client.create_collection(self._name, {REGIONS: vectors}, metadata={MARK: VERSION, **facts})
        if self._place.url != ":memory:":  # which does not use payload indexes
            for key in ("path", "kind"):
                client.create_payload_index(self._name, key, models.PayloadSchemaType.KEYWORD)

    # Reading

    def __len__(self) -> int:
        with self._place.asking() as client:
            return client.count(self._name, _matching("kind", (IMAGE, MOMENT)), exact=True).count

    def __contains__(self, name: str) -> bool:
        return bool(self._points([point_id(name)], payload=False))

    def load(self, name: str) -> ImageVectors | None:
        found = self._points([point_id(name)], vectors=True)
        return _image_of(found[0])[0] if found and found[0].vector else None

    def locate(self, entry: str) -> Located | None:
        if not _is_id(entry) or not (found := self._points([entry])):
            return None
        payload = found[0].payload or {}
        if payload["kind"] == VIDEO:
            return None
        path, time = _path_of(payload), payload["time"]
        file = found if time is None else self._points([point_id(path)])
        return Located(path, time, _stamp_of(file[0].payload or {})) if file else None

    def _points(self, ids: Sequence[Any], payload: bool = True, vectors: bool = False) -> list[models.Record]:
        """Return the existing points among these ids."""
        with self._place.asking() as client:
            named = [REGIONS] if vectors else False
            return client.retrieve(self._name, ids, with_payload=payload, with_vectors=named)

    def nearest(
        self, question: Question, top: int, *, exact: bool = False, threads: int = 1, only: Only | None = None
    ) -> list[Found]:
        """Return the best images for one query, best first; all are compared.

        Filters are applied here and not by the servers, which are asked for more points until there are enough.
        """
        if question.score != "max":
            raise UserError(f"{self._place}: Qdrant does not know the score {question.score!r} of this model")
        words, most = question.words * question.weights, top
        dates: dict[str, str] = {}
        if only and (only.after or only.before):
            dates = {path: stamp.taken for path, stamp in self.stamps().items()}
            dates |= {path: video.stamp.taken for path, video in self.videos().items()}
        while True:
            points = self._query(words, most)
            paths = [(point.id, _path_of(point.payload or {})) for point in points]
            some = [number for number, path in paths if not only or only.accepts(path, dates.get(path, ""))]
            if len(some) >= top or len(points) < most:
                break
            most *= 4
        bonus = self._bonus(question, only, dates) if question.kinds is not None else {}
        some = list(dict.fromkeys([*some[:top], *sorted(bonus, key=lambda point: -bonus[point])[:top]]))
        everyday = np.array([_similarity(image, question) + _bonus_of(image.nouns, question) for image in self._sample])
        found, among = list[Found](), len(self)
        for point in self._points(some[: None if bonus else top], vectors=True) if some else ():
            image, time = _image_of(point)
            value, entry = _similarity(image, question), str(point.id)
            lead = leads(np.array([value + bonus.get(entry, 0.0)]), everyday).item()
            found.append(Found(value, image, time, entry, lead, among))
        return sorted(found, key=lambda row: -(row.similarity + bonus.get(row.entry, 0.0)))[:top]

    def _bonus(self, question: Question, only: Only | None, dates: Mapping[str, str]) -> dict[str, float]:
        """Return what the noun classifier adds to the similarity of images, by point id; reads all payloads."""
        found: dict[str, float] = {}
        for point in self._scroll((IMAGE, MOMENT), ["path", "nouns"]):
            row = point.payload or {}
            path = _path_of(row)
            if not only or only.accepts(path, dates.get(path, "")):
                found[str(point.id)] = _bonus_of(np.array(row["nouns"], np.uint16), question)
        return found

    @cached_property
    def _sample(self) -> list[ImageVectors]:
        """A sample of the images, to compare hits with."""
        with self._place.asking() as client:
            points, _ = client.scroll(self._name, _matching("kind", (IMAGE, MOMENT)), SAMPLE, with_payload=True,
                                      with_vectors=[REGIONS])  # fmt: skip
        return [_image_of(point)[0] for point in points]

    def _query(self, words: np.ndarray, most: int) -> list[models.ScoredPoint]:
        """Return the best points for words, with their paths."""
        from qdrant_client import models

        with self._place.asking() as client:
            return client.query_points(
                self._name, query=words.tolist(), using=REGIONS, limit=most, with_payload=["path"],
                query_filter=_matching("kind", (IMAGE, MOMENT)),
                search_params=None if self._place.url == ":memory:" else models.SearchParams(exact=True),
            ).points  # fmt: skip

    def stamps(self) -> dict[str, Stamp]:
        return {_path_of(payload): _stamp_of(payload) for payload in self._payloads(IMAGE)}

    def videos(self) -> dict[str, Video]:
        rows = ((_path_of(row), _stamp_of(row), json.loads(row["state"])) for row in self._payloads(VIDEO))
        return {path: Video(path, stamp, **state) for path, stamp, state in rows}

    def _payloads(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield the payload fields that updates need, for all points of a kind."""
        for point in self._scroll([kind], ["path", "size", "changed", "hash", "state", "taken"]):
            yield point.payload or {}

    def _scroll(self, kinds: Sequence[str], fields: list[str]) -> Iterator[models.Record]:
        """Yield all points of some kinds, with these fields of their payloads."""
        offset = None
        while True:
            with self._place.asking() as client:
                points, offset = client.scroll(self._name, _matching("kind", kinds), PAGE, offset=offset,
                                               with_payload=fields)  # fmt: skip
            yield from points
            if offset is None:
                return

    # Writing

    def put(self, images: Sequence[tuple[str, Stamp, ImageVectors]], video: Video | None = None) -> None:
        """Add images or replace those of the same name, then store the progress through the video."""
        points = [_image_point(*image) for image in images]
        if video is not None:
            state = {"kind": VIDEO, "path": path_to_text(video.path), "state": video.state}
            points.append(_point(video.path, {}, {**state, **_stamp_fields(video.stamp)}))
        for start in range(0, len(points), TOGETHER):
            with self._place.asking() as client:
                client.upsert(self._name, points[start : start + TOGETHER], wait=True)

    def remove(self, paths: Iterable[str]) -> int:
        from qdrant_client import models

        names, count = list(paths), 0
        for start in range(0, len(names), PAGE):
            some = names[start : start + PAGE]
            count += len(self._points([point_id(name) for name in some], payload=False))
            with self._place.asking() as client:
                client.delete(
                    self._name, models.FilterSelector(filter=_matching("path", [path_to_text(name) for name in some]))
                )
        return count

    def restamp(self, stamps: Mapping[str, Stamp]) -> None:
        with self._place.asking() as client:
            for path, stamp in stamps.items():
                client.set_payload(self._name, _stamp_fields(stamp), points=[point_id(path)])

    # Killed runs leave only complete points, and the servers organise and repair their data themselves

    def tidy(self) -> None: ...

    def settle(self, components: int | None = None) -> None: ...

    def repair(self) -> int:
        return 0

    def lost(self) -> set[str]:
        return set()

    def close(self) -> None:
        self._place.close()

    def __enter__(self) -> QdrantStore:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _point(name: str, vector: dict[str, Any], payload: dict[str, Any]) -> models.PointStruct:
    from qdrant_client import models

    return models.PointStruct(id=point_id(name), vector=vector, payload=payload)


def _image_point(name: str, stamp: Stamp, image: ImageVectors) -> models.PointStruct:
    """Return the point of an image or video frame; ``UserError`` for numbers beyond half precision."""
    path, time = split_moment(name)
    _, regions, vectors = to_arrays(image)
    payload = {
        "kind": IMAGE if time is None else MOMENT, "path": path_to_text(path), "time": time,
        "width": image.width, "height": image.height, "boxes": regions["box"].tolist(),
        "logits": regions["logit"].tolist(), "nouns": regions["nouns"].tolist(),
        "colours": regions["colours"].tolist(), **_stamp_fields(stamp),
    }  # fmt: skip
    return _point(name, {REGIONS: vectors.astype(np.float32).tolist()}, payload)


def _matching(key: str, values: Sequence[str]) -> models.Filter:
    from qdrant_client import models

    return models.Filter(must=[models.FieldCondition(key=key, match=models.MatchAny(any=list(values)))])


def _is_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _bonus_of(nouns: np.ndarray | None, question: Question) -> float:
    """Return what the noun classifier adds to an image's similarity, from its packed predictions."""
    if nouns is None or question.kinds is None or question.kind_weights is None:
        return 0.0
    return float(log_kinds(packed_kinds(nouns, question.kinds).max(axis=0)) @ question.kind_weights[:, 0])


def _similarity(image: ImageVectors, question: Question) -> float:
    products = with_hubness(image) @ question.words.T
    return float((over_regions(products, [len(image)], question.score) @ question.weights)[0, 0])
