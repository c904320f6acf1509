"""Tensors over files: every dtype, without copies, alive when the file's name is gone."""

from __future__ import annotations

import io
import mmap
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt.errors import InvalidModelError
from ortopt.serialization.mapped_tensors import MappedFile, MappedTensor
from ortopt.system.memory import of_process

DTYPES = [dtype for dtype in ir.DataType if dtype not in {ir.DataType.UNDEFINED, ir.DataType.STRING}]


def mapped(path: Path, data: bytes, dtype: ir.DataType, dims: list[int], offset: int = 3) -> MappedTensor:
    path.write_bytes(b"\xff" * offset + data + b"\xff" * 5)
    return MappedTensor(MappedFile(path), offset, len(data), dtype=dtype, shape=ir.Shape(dims), name="w")


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_every_dtype_reads_as_onnx_ir_reads_it(tmp_path: Path, dtype: ir.DataType, count: int) -> None:
    length = (count * dtype.bitwidth + 7) // 8
    data = bytes(byte & 0x3 if dtype == ir.DataType.BOOL else byte for byte in range(1, length + 1))
    if dtype == ir.DataType.BOOL:
        data = bytes(byte & 1 for byte in data)
    if dtype.bitwidth == 6 and length:
        data = data[:-1] + bytes([data[-1] & 0x3])
    tensor = mapped(tmp_path / "w", data, dtype, [count])
    expected = ir.serde.TensorProtoTensor(onnx.TensorProto(data_type=dtype, dims=[count], raw_data=data))
    array = tensor.numpy()
    assert array.dtype == expected.numpy().dtype
    assert array.shape == (count,)
    assert array.tobytes() == expected.numpy().tobytes()
    assert not array.flags.writeable
    assert tensor.tobytes() == data
    assert tensor.nbytes == length
    stream = io.BytesIO()
    tensor.tofile(stream)
    assert stream.getvalue() == data
    with (tmp_path / "copy").open("wb") as file:
        tensor.tofile(file)
    assert (tmp_path / "copy").read_bytes() == data


def test_numpy_is_a_view(tmp_path: Path) -> None:
    tensor = mapped(tmp_path / "w", bytes(4000), ir.DataType.FLOAT, [10, 100])
    assert not tensor.numpy().flags.owndata
    assert np.shares_memory(tensor.numpy(), tensor.numpy())
    assert np.asarray(tensor).shape == (10, 100)
    assert "w" in repr(tensor)


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED") or not of_process(), reason="needs madvise and /proc")
def test_what_was_read_leaves_the_memory_again(tmp_path: Path) -> None:
    size, count = 16 << 20, 12
    tensors = [mapped(tmp_path / f"{n}", bytes([1]) * size, ir.DataType.UINT8, [size]) for n in range(count)]
    before = of_process()["RssFile"]
    first = tensors[0].numpy()
    for tensor in tensors:
        assert tensor.numpy().max() == 1
        assert of_process()["RssFile"] - before <= 6 * size
    assert first.max() == 1


def test_large_tensors_are_copied_through_files_from_where_they_stand(tmp_path: Path) -> None:
    data = np.random.default_rng(0).bytes(1 << 20)
    tensor = mapped(tmp_path / "w", data, ir.DataType.UINT8, [1 << 20])
    with (tmp_path / "copy").open("wb") as file:
        file.write(b"before")
        tensor.tofile(file)
        file.write(b"after")
    assert (tmp_path / "copy").read_bytes() == b"before" + data + b"after"
    stream = io.BytesIO()
    tensor.tofile(stream)
    assert stream.getvalue() == data


def test_data_outlive_the_name(tmp_path: Path) -> None:
    tensor = mapped(tmp_path / "w", b"abcd", ir.DataType.UINT8, [4])
    (tmp_path / "other").write_bytes(b"?" * 12)
    (tmp_path / "other").replace(tmp_path / "w")
    assert tensor.tobytes() == b"abcd"
    assert not tensor.raw.source.is_at(tmp_path / "w")  # type: ignore[union-attr]
    (tmp_path / "w").unlink()
    assert tensor.numpy().tobytes() == b"abcd"


def test_a_file_that_was_written_into_is_not_read(tmp_path: Path) -> None:
    tensor = mapped(tmp_path / "w", bytes(100_000), ir.DataType.UINT8, [100_000])
    (tmp_path / "w").write_bytes(b"short")
    for read in (tensor.numpy, tensor.tobytes, lambda: tensor.tofile(io.BytesIO())):
        with pytest.raises(InvalidModelError, match="changed"):
            read()


@pytest.mark.parametrize(
    ("dims", "dtype", "length", "because"),
    [
        ([5], ir.DataType.FLOAT, 16, "16 bytes of data where its type FLOAT and its shape need 20"),
        ([-1], ir.DataType.FLOAT, 4, "negative"),
        ([4], ir.DataType.STRING, 4, "no binary form"),
        ([1 << 40, 1 << 40], ir.DataType.FLOAT, 4, "need"),
        ([100], ir.DataType.UINT8, 100, "beyond the end of the file"),
    ],
)
def test_what_does_not_agree_is_refused(
    tmp_path: Path, dims: list[int], dtype: ir.DataType, length: int, because: str
) -> None:
    (tmp_path / "w").write_bytes(bytes(16))
    with pytest.raises(InvalidModelError, match=because):
        MappedTensor(MappedFile(tmp_path / "w"), 0, length, dtype=dtype, shape=ir.Shape(dims), name="w")


def test_only_regular_files_are_mapped(tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="regular"):
        MappedFile(tmp_path)
    assert MappedFile(__file__).size
    (tmp_path / "empty").touch()
    assert MappedFile(tmp_path / "empty").map == b""
