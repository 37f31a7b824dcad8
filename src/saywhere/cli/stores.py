"""Where the commands that make and search an index have it: a folder, or a collection in Qdrant."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from saywhere.errors import UserError

if TYPE_CHECKING:
    from saywhere.search import Qdrant


class StoreKind(StrEnum):
    """What keeps the vectors of an index."""

    folder = "folder"
    qdrant = "qdrant"


IndexFolder = Annotated[
    Path | None, typer.Option("--index", metavar="DIR", help="Folder of the index.", show_default=False)
]
Store = Annotated[StoreKind, typer.Option("--store", help="Where the index is: in a folder, or in a Qdrant cluster.")]
Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help="Of a Qdrant server; its key is read from QDRANT_API_KEY."),
]
Collection = Annotated[
    str | None,
    typer.Option("--collection", metavar="NAME", help="In Qdrant.", show_default="saywhere"),
]
CollectionShards = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", show_default="as the servers are set", help="Shards of a new collection in Qdrant."
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", show_default="as the servers are set", help="Copies of each of its shards."),
]


class Where(NamedTuple):
    """Say where an index is, by the options of the same names."""

    folder: Path | None
    store: StoreKind
    url: str | None = None
    collection: str | None = None
    shards_of_collection: int | None = None
    replicas: int | None = None

    def place(self) -> Path | Qdrant:
        """Return the place, for :class:`saywhere.Index`.

        Raises:
            UserError: the options do not fit each other.
        """
        if self.store is StoreKind.folder:
            for name, value in self._asdict().items():
                if name not in ("folder", "store") and value is not None:
                    raise UserError(
                        f"--{name.replace('_', '-')} is for an index in Qdrant: give --store qdrant as well"
                    )
            if self.folder is None:
                raise UserError("--index DIR is missing: the folder of the index (or --store qdrant and --url URL)")
            return self.folder
        if self.folder is not None:
            raise UserError("an index in Qdrant has no --index: it has --url URL")
        if self.url is None:
            raise UserError("--url URL is missing: the Qdrant server with the index")
        if self.url == ":memory:":
            raise UserError("--url :memory: would be gone when this command ends; for trials give --url path:DIR")
        from saywhere.search import Qdrant

        return Qdrant(self.url, self.collection or Qdrant.collection, self.shards_of_collection, self.replicas)
