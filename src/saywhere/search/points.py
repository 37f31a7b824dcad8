"""Images, moments and videos as points of Qdrant: id, vectors and payload."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from saywhere.models.aligner import ImageVectors
from saywhere.search.stamps import Stamp, Video, split_moment
from saywhere.search.vectors import VECTOR, to_arrays, without_hubness

if TYPE_CHECKING:
    from qdrant_client import models

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
    return {"size": stamp.size, "changed": stamp.time, "hash": stamp.hash.hex()}


def stamp_of(payload: Mapping[str, Any]) -> Stamp:
    """Return the stamp that a payload has."""
    return Stamp(payload["size"], payload["changed"], bytes.fromhex(payload["hash"]))


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
        "logits": regions["logit"].tolist(), **stamp_fields(stamp),
    }  # fmt: skip
    return models.PointStruct(id=point_id(name), vector={REGIONS: vectors.astype(np.float32).tolist()}, payload=payload)


def image_of(point: models.Record | models.ScoredPoint) -> tuple[ImageVectors, float | None]:
    """Return the image of a point, and of a moment its seconds."""
    payload, vectors = point.payload or {}, point.vector
    assert isinstance(vectors, dict)
    boxes, logits = (np.array(payload[key], np.float32) for key in ("boxes", "logits"))
    rows, hubness = without_hubness(np.array(vectors[REGIONS], VECTOR).astype(np.float32))
    image = ImageVectors(payload["width"], payload["height"], boxes, rows, path_of(payload), logits, hubness)
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
