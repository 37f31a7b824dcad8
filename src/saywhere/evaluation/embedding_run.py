"""The pictures of a data set as an aligner embeds them, kept on disk so that a run that was stopped goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from saywhere.evaluation.retrieval_run import RegionStore
from saywhere.images import ImageError, Picture, open_picture
from saywhere.models.aligner import Aligner
from saywhere.models.alignment import PictureVectors
from saywhere.regions import Regions

if TYPE_CHECKING:
    from saywhere.images import ImageLike


class NamedPicture(Protocol):
    """A picture with a name that no other has."""

    @property
    def name(self) -> str:
        """The name."""
        ...

    @property
    def path(self) -> ImageLike:
        """The file."""
        ...


def embed_missing(
    model: Aligner,
    sources: Sequence[NamedPicture],
    store: RegionStore,
    batch: int,
    areas: int | None = None,
    advance: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """Embed the pictures that ``store`` does not have; the names of those that cannot be read, with the reasons.

    Args:
        model: the aligner.
        sources: the pictures.
        store: takes their areas' boxes and vectors.
        batch: pictures at a time.
        areas: at most this many areas beside the whole picture, instead of the model's own number.
        advance: called after each picture.
    """
    skipped: dict[str, str] = {}
    todo = [source for source in sources if source.name not in store]
    for start in range(0, len(todo), batch):
        opened: list[tuple[str, Picture]] = []
        for source in todo[start : start + batch]:
            try:
                opened.append((source.name, open_picture(source.path, model.config.long_side)))
            except ImageError as error:
                skipped[source.name] = str(error).removeprefix(f"{source.path}: ")
                advance()
        for (name, _), vectors in zip(opened, model.embed_pictures([p for _, p in opened], limit=areas), strict=True):
            boxes, codes = vectors.boxes.cpu(), vectors.vectors.cpu()
            scores = None if vectors.scores is None else vectors.scores.float().cpu().sigmoid()
            store.save(name, Regions(vectors.width, vectors.height, boxes, scores, features=codes))
            advance()
    return skipped


def load_vectors(store: RegionStore, name: str) -> PictureVectors:
    """A picture that :func:`embed_missing` has kept."""
    kept = store.load(name)
    assert kept.features is not None
    scores = None if kept.scores is None else kept.scores.logit(1e-6)
    return PictureVectors(kept.width, kept.height, kept.boxes, kept.features, name, scores)
