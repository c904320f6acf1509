"""What is kept of a verification in memory is what a folder would have kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ortopt.evaluation.raw_tensors import MemoryPlace, Place, load_array, save_array
from ortopt.verification.input_sets import in_memory, inputs_from, store_inputs
from ortopt.verification.worker import restore, store

ARRAYS: list[Any] = [
    np.zeros((2, 0, 3), np.int8),
    np.float32(2),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.arange(24, dtype=np.float16).reshape(2, 3, 4)[:, ::-1, 1:],
    np.array([True, False]),
    np.array([1, np.nan, -np.inf], ml_dtypes.bfloat16),
    np.arange(1 << 15, dtype=np.float32).reshape(2, -1),
    np.array(["a", "\udcff"], object),
    [np.ones(2), np.zeros((1, 3), np.int64)],
    {"one": 1.5, "two": float("nan")},
    {1: 2},
    None,
]


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return tmp_path / "place" if request.param == "folder" else MemoryPlace()


@pytest.mark.parametrize("value", ARRAYS, ids=str)
def test_what_is_kept_is_the_same_in_both(value: Any, tmp_path: Path) -> None:
    places = (tmp_path, MemoryPlace())
    one, other = (restore(place, store(place, "x", value)) for place in places)
    assert type(one) is type(other) or isinstance(one, np.memmap)
    pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
    for first, second in pairs:
        np.testing.assert_equal(second, first)
        if isinstance(second, np.ndarray):
            assert (second.dtype, second.shape) == (first.dtype, first.shape)


def test_inputs_come_back_as_they_were_given(place: Place) -> None:
    given = {f"x{i}": value for i, value in enumerate(ARRAYS[:-3])}
    store_inputs(given, place)
    given["x2"][0] = 7
    found = inputs_from(place)
    assert list(found) == list(given)
    assert found["x5"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found["x2"], np.arange(6.0).reshape(2, 3))
    given["x2"][0] = [0, 1, 2]


def test_what_is_kept_cannot_be_changed_and_copies_can(place: Place, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    for size in (3, 1 << 15):
        row = store(place, "x", np.zeros(size, np.float32))
        found = restore(place, row)
        assert found.ctypes.data % 64 == 0
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 1
        in_memory(found)[0] = 1
        assert restore(place, row)[0] == 0


def test_half_a_file_is_no_array(tmp_path: Path) -> None:
    save_array(tmp_path / "x.npy", np.arange(9))
    content = (tmp_path / "x.npy").read_bytes()
    for length in (0, 9, 40, len(content) - 1):
        (tmp_path / "x.npy").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r".+"):
            load_array(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.asfortranarray(np.ones((2, 3))))
    with pytest.raises(ValueError, match="order of C"):
        load_array(tmp_path / "x.npy")
