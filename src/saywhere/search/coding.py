"""Codes of vectors: their principal components, a byte each, on which a search finds its candidates sooner."""

from __future__ import annotations

import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from saywhere.search.scan import unpack
from saywhere.search.vectors import Extent, Snapshot, write_at

SAMPLE = 40_000
"""Vectors, about, on which the basis is found: all of images that are chosen at random."""
BLOCK = 1 << 14
"""Vectors that are encoded together."""
LARGEST = 127


def fit(snapshot: Snapshot, components: int) -> np.ndarray:
    """Return the basis ``(D, P)``: the vectors' principal directions, as long as bytes can hold their products."""
    images = np.flatnonzero(snapshot.alive)
    count = max(1, SAMPLE * snapshot.extent.entries // max(1, snapshot.extent.regions))
    if len(images) > count:
        images = np.sort(np.random.default_rng(0).choice(images, count, replace=False))
    snapshot.expect(images)
    parts = [snapshot.vectors[snapshot.rows(image)] for image in images.tolist()]
    sample = unpack(np.concatenate([snapshot.vectors[:0], *parts]))
    _, directions = np.linalg.eigh(sample.T @ sample)
    basis = directions[:, ::-1][:, :components]
    widest = np.abs(sample @ basis).max(axis=0, initial=0)
    return np.ascontiguousarray(basis * (LARGEST / np.maximum(widest, 1e-6)), np.float32)


def encode(folder: Path, snapshot: Snapshot, extent: Extent) -> Extent:
    """Write the codes of the images that have none, and return the extent with them."""
    basis_file, codes_file = extent.code_files(folder)
    basis = np.fromfile(basis_file, "<f4").reshape(extent.size, extent.components)
    first = int(snapshot.starts[extent.coded])
    basis_sum, codes_sum = extent.basis_sum, extent.codes_sum
    if -1 in (basis_sum, codes_sum):  # of an index from before there were checksums
        basis_sum, codes_sum = zlib.crc32(basis.data), zlib.crc32(snapshot.codes.data)
    for start in range(first, extent.regions, BLOCK):
        values = unpack(snapshot.vectors[start : start + BLOCK]) @ basis
        codes = np.round(values).clip(-LARGEST, LARGEST).astype(np.int8)
        write_at(codes_file, start * extent.components, codes)
        codes_sum = zlib.crc32(codes.data, codes_sum)
    return replace(extent, coded=extent.entries, basis_sum=basis_sum, codes_sum=codes_sum)
