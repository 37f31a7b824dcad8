"""Reading Torch7 files: what they hold, and that no file makes the reader fall or run anything."""

from __future__ import annotations

import struct

import numpy
import pytest
from refusals import refuses
from torch7_writer import Function, Object, View, Writer, write

from saywhere.errors import UserError
from saywhere.papers.densecap2016 import torch7


def test_tables_numbers_texts_and_objects(tmp_path):
    shared = {"x": 1}
    table = {"a": shared, 2: shared, "b": True, "c": 2.5, "d": None, "e": Object("nn.X", {1: "é"})}
    path = write(tmp_path / "a.t7", table)
    found = torch7.read(path)
    assert found["a"]["x"] == 1 and found["a"] is found[2] and found["b"] is True and found["c"] == 2.5
    assert found["d"] is None and isinstance(found["e"], torch7.Torch7Object) and found["e"][1] == "é"
    assert found["e"].torch_typename() == b"nn.X"


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "uint8"])
def test_tensors_are_views_of_the_file(tmp_path, dtype):
    storage = numpy.arange(24).astype(dtype)
    tensors = {
        "all": storage.reshape(2, 3, 4),
        "part": View(storage, (3, 2), (1, 6), 3),
        "none": numpy.zeros(0, dtype),
        "row": View(storage, (2, 3), (0, 1)),
    }
    found = torch7.read(write(tmp_path / "a.t7", tensors))
    assert found["all"].dtype == dtype and found["all"].tolist() == storage.reshape(2, 3, 4).tolist()
    assert found["part"].tolist() == [[2, 8], [3, 9], [4, 10]]
    assert found["none"].size == 0 and found["row"].tolist() == [[0, 1, 2], [0, 1, 2]]
    base = found["all"]
    while base.base is not None and not isinstance(base, numpy.memmap):
        base = base.base
    assert isinstance(base, numpy.memmap)
    with pytest.raises(ValueError, match="read-only"):
        found["all"][0] = 1


def test_functions_are_passed_over(tmp_path):
    f = Function(b"os.execute('touch /')")
    found = torch7.read(write(tmp_path / "a.t7", {1: f, 2: "after", 3: f}))
    assert found[1] is None and found[2] == "after" and found[3] is None


def test_every_truncation_is_one_line(tmp_path):
    whole = write(tmp_path / "a.t7", {"w": numpy.ones((2, 3), numpy.float32), "t": Object("nn.X", {"n": 1})})
    data = whole.read_bytes()
    for length in range(len(data)):
        part = tmp_path / "part.t7"
        part.write_bytes(data[:length])
        refuses(r"part\.t7: not a Torch7 file", torch7.read, part)


def test_every_changed_byte_reads_or_is_one_line(tmp_path):
    tensor = View(numpy.ones(6, numpy.float32), (2, 3), (3, 1))
    data = write(tmp_path / "a.t7", {"w": tensor, "t": Object("nn.X", {"n": 1})}).read_bytes()
    read = 0
    for place in range(len(data)):
        for value in (0, 4, 255):
            broken = tmp_path / "broken.t7"
            broken.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])
            try:
                found = torch7.read(broken)
                tensor = found.get("w") if isinstance(found, dict) else None
                if isinstance(tensor, numpy.ndarray) and tensor.size < 100:
                    tensor.sum()  # reaches no byte outside the file
                read += 1
            except UserError as error:
                assert "\n" not in str(error)
    assert 0 < read < 3 * len(data)


def raw(tmp_path, form, *values):
    path = tmp_path / "raw.t7"
    path.write_bytes(struct.pack("<" + form, *values))
    return path


def tensor_of(tmp_path, shape, strides, offset=1, count=4, claimed=None):
    path = tmp_path / "tensor.t7"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.pack("ii", 4, 1)
        writer.string("V 1")
        writer.string("torch.FloatTensor")
        writer.pack(f"i{len(shape)}q{len(strides)}qq", len(shape), *shape, *strides, offset)
        writer.pack("ii", 4, 2)
        writer.string("V 1")
        writer.string("torch.FloatStorage")
        writer.pack("q", count if claimed is None else claimed)
        file.write(bytes(4 * count))
    return path


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "claimed", "reason"),
    [
        ((5,), (1,), 1, None, "a tensor reaches beyond its numbers"),
        ((2, 2), (1000, 1), 1, None, "a tensor reaches beyond its numbers"),
        ((2,), (-1,), 2, None, "a tensor reaches beyond its numbers"),
        ((2,), (1,), -5, None, "a tensor reaches beyond its numbers"),
        ((4,), (1,), 1, 10**15, "it ends before it is complete"),
        ((4,), (1,), 1, -3, "a storage has -3 numbers"),
    ],
)
def test_tensors_that_reach_outside_are_refused(tmp_path, shape, strides, offset, claimed, reason):
    refuses(reason, torch7.read, tensor_of(tmp_path, shape, strides, offset, claimed=claimed))


def test_sizes_that_are_not_there_are_refused(tmp_path):
    refuses("it ends before it is complete", torch7.read, raw(tmp_path, "ii", 2, 2**31 - 1))  # a text of 2 GB
    refuses("a length is -1", torch7.read, raw(tmp_path, "ii", 2, -1))
    refuses("nested more than", torch7.read, nested(tmp_path, 300))


def nested(tmp_path, depth):
    path = tmp_path / "nested.t7"
    with path.open("wb") as file:
        for i in range(depth):
            file.write(struct.pack("<iii", 3, i + 1, 1) + struct.pack("<id", 1, 1.0))
        file.write(struct.pack("<i", 0))
    return path


def test_other_files_are_named(tmp_path):
    refuses("cannot be read", torch7.read, tmp_path)
    for name, data in {"zip": b"PK\3\4" + bytes(100), "text": b"hello, world", "empty": b""}.items():
        (tmp_path / name).write_bytes(data)
        refuses(f"{name}: not a Torch7 file", torch7.read, tmp_path / name)
    with pytest.raises(UserError, match=r"torch\.HalfTensor, which is not supported"):
        torch7.read(write(tmp_path / "half.t7", Object("torch.HalfTensor")))
