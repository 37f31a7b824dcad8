"""Image search by words, with the regions that match: an index on disk or in Qdrant, and its search."""

from saywhere.search.index import Hit, Index
from saywhere.search.indexing import Changes
from saywhere.search.phrases import Query
from saywhere.search.qdrant import Qdrant

__all__ = ["Changes", "Hit", "Index", "Qdrant", "Query"]
