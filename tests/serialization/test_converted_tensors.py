"""Tensors that are converted when they are written: the same numbers, whole and in pieces, inside and beside."""

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt.serialization import mapped_tensors
from ortopt.serialization.load import load
from ortopt.serialization.mapped_tensors import ConvertedTensor
from ortopt.serialization.save import save
from ortopt.testing import parse

NUMBERS = np.array([[1.0, -1e30, 3.3], [np.inf, np.nan, 1e-9]], np.float32)


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.FLOAT])
def test_numbers_are_rounded(dtype: ir.DataType) -> None:
    tensor = ConvertedTensor(ir.tensor(NUMBERS, name="w"), dtype)
    with np.errstate(over="ignore"):
        expected = NUMBERS.astype(dtype.numpy())
    np.testing.assert_array_equal(tensor.numpy().astype(np.float32), expected.astype(np.float32))
    assert tensor.tobytes() == expected.tobytes()
    assert (tensor.name, tensor.nbytes, tensor.dtype) == ("w", expected.nbytes, dtype)


def test_finite_numbers_have_a_bound_if_one_is_given() -> None:
    tensor = ConvertedTensor(ir.tensor(NUMBERS), ir.DataType.FLOAT16, 1000.0)
    assert tensor.numpy()[0, 1] == -1000
    assert tensor.numpy()[1, 0] == np.inf
    assert np.isnan(tensor.numpy()[1, 1])


def test_pieces_are_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_tensors, "_PIECE", 7)
    tensor = ConvertedTensor(ir.tensor(np.arange(100, dtype=np.float32)), ir.DataType.FLOAT16)
    with (tmp_path / "data").open("wb") as file:
        tensor.write_slice(file, 0, 60)
        tensor.write_slice(file, 60, 140)
    assert (tmp_path / "data").read_bytes() == tensor.tobytes()


@pytest.mark.parametrize("external", ["inline", "copy"])
def test_a_model_is_written_with_them(tmp_path: Path, external: str) -> None:
    model = parse("main (float16[2,2] x) => (float16[2,2] y) <float16[2,2] w = {1, 2, 3, 4}> { y = Add (x, w) }")
    numbers = np.array([[0.1, 0.2], [0.3, 0.4]], np.float32)
    model.graph.initializers["w"].const_value = ConvertedTensor(ir.tensor(numbers, name="w"), ir.DataType.FLOAT16)
    save(model, tmp_path / "model.onnx", external_data=external)  # type: ignore[arg-type]
    onnx.checker.check_model(str(tmp_path / "model.onnx"))
    again = load(tmp_path / "model.onnx").graph.initializers["w"].const_value
    assert again is not None
    np.testing.assert_array_equal(again.numpy(), numbers.astype(np.float16))
