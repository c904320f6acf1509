"""Models that share their weights: each weight is written once, files that hold them get a second name."""

import os
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.cancellation import CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.serialization.load import load
from ortopt.serialization.mapped_tensors import ConvertedTensor
from ortopt.serialization.save import save
from ortopt.serialization.scan import external_files
from ortopt.serialization.stored_weights import StoredWeights
from ortopt.testing import parse

ARRAY = np.linspace(-3, 3, 64 * 64, dtype=np.float32).reshape(64, 64)


def model() -> ir.Model:
    """A product with one weight of 16 KB."""
    made = parse("main (float[2,64] x, float[64,64] w) => (float[2,64] y) { y = MatMul (x, w) }")
    value = made.graph.inputs[1]
    value.const_value = ir.tensor(ARRAY, name="w")
    made.graph.inputs.remove(value)
    made.graph.register_initializer(value)
    return made


def weight(made: ir.Model) -> ir.TensorProtocol:
    """Its weight."""
    tensor = made.graph.initializers["w"].const_value
    assert tensor is not None
    return tensor


def test_a_weight_is_written_once(tmp_path: Path) -> None:
    store, made = StoredWeights(tmp_path), model()
    for name in ("a.onnx", "b.onnx"):
        store.save(made, tmp_path / name)
    assert (tmp_path / "weights.data").stat().st_size == ARRAY.nbytes
    for name in ("a.onnx", "b.onnx"):
        assert (tmp_path / name).stat().st_size < 1000
        np.testing.assert_array_equal(weight(load(tmp_path / name)).numpy(), ARRAY)


def test_conversions_of_a_weight_are_other_weights_and_the_same_one_is_not(tmp_path: Path) -> None:
    store, made = StoredWeights(tmp_path), model()
    plain = weight(made)
    store.save(made, tmp_path / "a.onnx")
    for name in ("b.onnx", "c.onnx"):
        half = ConvertedTensor(plain, ir.DataType.FLOAT16)
        made.graph.initializers["w"].const_value = ConvertedTensor(half, ir.DataType.FLOAT)
        store.save(made, tmp_path / name)
    assert (tmp_path / "weights.data").stat().st_size == 2 * ARRAY.nbytes
    expected = ARRAY.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(weight(load(tmp_path / "c.onnx")).numpy(), expected)
    np.testing.assert_array_equal(weight(load(tmp_path / "a.onnx")).numpy(), ARRAY)


@pytest.mark.skipif(not hasattr(os, "link"), reason="the system has no second names")
def test_what_lies_in_a_file_stays_there(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    save(model(), tmp_path / "own" / "m.onnx", external_data="copy")
    store, folder = StoredWeights(tmp_path), tmp_path
    store.save(load(tmp_path / "own" / "m.onnx"), folder / "a.onnx")
    assert not (folder / "weights.data").exists()
    assert (folder / "weights0.data").stat().st_nlink == 2
    np.testing.assert_array_equal(weight(load(folder / "a.onnx")).numpy(), ARRAY)


def test_without_second_names_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse, raising=False)
    (tmp_path / "own").mkdir()
    save(model(), tmp_path / "own" / "m.onnx", external_data="copy")
    StoredWeights(tmp_path).save(load(tmp_path / "own" / "m.onnx"), tmp_path / "a.onnx")
    assert (tmp_path / "weights.data").stat().st_size == ARRAY.nbytes
    np.testing.assert_array_equal(weight(load(tmp_path / "a.onnx")).numpy(), ARRAY)


def test_a_cancelled_run_ends(tmp_path: Path) -> None:
    token = CancellationToken()
    token.cancel()
    with pytest.raises(OptimizationCancelled):
        StoredWeights(tmp_path).save(model(), tmp_path / "a.onnx", token)


def test_files_beside_a_model_are_found_in_its_bytes(tmp_path: Path) -> None:
    save(model(), tmp_path / "inline.onnx")
    saved = save(model(), tmp_path / "m.onnx", external_data="copy")
    assert external_files(tmp_path / "m.onnx") == [saved.data_path]
    assert external_files(tmp_path / "inline.onnx") == []
    assert external_files(tmp_path / "nothing.onnx") == []
    (tmp_path / "odd.onnx").write_bytes(b"\n\x08location\x12")
    assert external_files(tmp_path / "odd.onnx") == []
