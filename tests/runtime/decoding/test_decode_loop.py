"""A decode loop: steps of any size, growth, beams, other sequences, mistakes, threads; and what the session says."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from ortopt.errors import UsageError
from ortopt.runtime import denormals
from ortopt.runtime.decoding.decode_loop import DecodeLoop
from ortopt.runtime.session import InferenceSession
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.runtime.decoding.decoders import PLAIN, PlainLoop, agree, loop_of, model, options
from tests.runtime.models import TWO_GROUPS, Twice
from tests.runtime.side_by_side import in_threads

PAIRS = {"pk": "ok", "pv": "ov"}


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def x(batch: int, count: int, seed: int = 0) -> dict[str, Any]:
    return {"x": numbers(batch, count, 8, seed=seed)}


def both(batch: int, *counts: int) -> tuple[DecodeLoop, PlainLoop]:
    """A decode loop and a plain loop after the same steps."""
    loop, plain = loop_of(PLAIN), PlainLoop(model(PLAIN), PAIRS, batch)
    for seed, count in enumerate(counts):
        step_alike(loop, plain, x(batch, count, seed))
    return loop, plain


def step_alike(loop: DecodeLoop, plain: PlainLoop, feed: dict[str, Any]) -> None:
    np.testing.assert_allclose(loop.step(feed)[0], plain.step(feed)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [(1, 1, 1, 1, 1), (5,), (2, 7, 1), (1, 40)])
def test_buffers_grow(steps: tuple[int, ...]) -> None:
    loop = agree(PLAIN, steps=steps)
    assert loop.capacity >= loop.length


def test_a_capacity_that_suffices_stays() -> None:
    loop = InferenceSession(model(PLAIN), shared_cache=True).decode_loop(9)
    for seed in range(9):
        loop.step(x(1, 1, seed))
    assert (loop.length, loop.capacity) == (9, 9)
    loop.step(x(1, 1))
    assert (loop.length, loop.capacity) == (10, 18)


def test_the_kernels_write_into_the_buffers() -> None:
    loop = InferenceSession(model(PLAIN), shared_cache=True).decode_loop(8)
    loop.step(x(2, 3))
    before = [(array.ctypes.data, array[:3].copy()) for array in loop._cache.arrays]
    loop.step(x(2, 2, 1))
    for array, (address, front) in zip(loop._cache.arrays, before, strict=True):
        assert array.ctypes.data == address
        np.testing.assert_array_equal(array[:3], front)
        assert np.any(array[3:5])


def test_results_stay_what_they_are() -> None:
    loop = loop_of(PLAIN)
    (first,) = loop.step(x(1, 2))
    kept = first.copy()
    loop.step(x(1, 2, 1))
    np.testing.assert_array_equal(first, kept)


def test_crop() -> None:
    loop, plain = both(2, 3, 2)
    loop.crop(4)
    plain.past = {name: array[:, :, :4] for name, array in plain.past.items()}
    step_alike(loop, plain, x(2, 1, 9))
    with pytest.raises(UsageError, match="cannot be cropped to 6"):
        loop.crop(6)
    with pytest.raises(UsageError, match="cannot be cropped to -1"):
        loop.crop(-1)


@pytest.mark.parametrize("indices", [(1, 0, 2), (2, 2, 2), (0,), (0, 1, 2, 1, -1)])
def test_reorder(indices: tuple[int, ...]) -> None:
    loop, plain = both(3, 3, 2)
    loop.reorder(indices)
    plain.past = {name: array[list(indices)] for name, array in plain.past.items()}
    step_alike(loop, plain, x(len(indices), 2, 9))


def test_reset_takes_another_batch() -> None:
    loop, _ = both(2, 3)
    loop.reset()
    assert loop.length == 0
    plain = PlainLoop(model(PLAIN), PAIRS, 3)
    step_alike(loop, plain, x(3, 2, 5))


@pytest.mark.parametrize("length", [0, 5])
def test_load(length: int) -> None:
    loop, plain = loop_of(PLAIN), PlainLoop(model(PLAIN), PAIRS, 2)
    plain.past = {name: numbers(2, 2, length, 4, seed=i) for i, name in enumerate(PAIRS)}
    loop.load(plain.past)
    assert loop.length == length
    step_alike(loop, plain, x(2, 2))
    for name, array in loop.past().items():
        np.testing.assert_array_equal(array, plain.past[name])


def test_pasts_that_cannot_be_loaded() -> None:
    good = numbers(2, 2, 3, 4)
    for past, because in (
        ({"pk": good}, "'pv' is missing"),
        ({"pk": good, "pv": good.astype(np.float64)}, "another dtype or rank"),
        ({"pk": good, "pv": good[0]}, "another dtype or rank"),
        ({"pk": good, "pv": numbers(2, 3, 3, 4)}, "axis 1 of 'pv' has 3 elements, not 2"),
        ({"pk": good, "pv": good[:, :, :2]}, "several lengths: 2, 3"),
    ):
        with pytest.raises(UsageError, match=because):
            loop_of(PLAIN).load(past)


def test_feeds_of_other_kinds() -> None:
    loop, plain = both(2, 2)
    feed = x(2, 1, 7)
    expected = plain.step(feed)[0]
    strided = np.repeat(feed["x"], 2, axis=2)[:, :, ::2]
    for value in (feed["x"].tolist(), strided, onnxruntime.OrtValue.ortvalue_from_numpy(feed["x"])):
        given = np.asarray(value, np.float32) if isinstance(value, list) else value
        np.testing.assert_allclose(loop.step({"x": given})[0], expected, rtol=1e-5)
        loop.crop(2)


def test_outputs_that_are_asked_for() -> None:
    text = PLAIN.replace("float[batch,seq,8] y,", "float[batch,seq,8] y, float[] s,")
    loop = loop_of(text)
    assert len(loop.step(x(1, 2))) == 2
    (scores,) = loop.step(x(1, 1), ["s"])
    assert scores.shape == (1, 2, 1, 3)
    again, y, more = loop.step(x(1, 1), ["s", "y", "s"])
    assert y.shape == (1, 1, 8)
    np.testing.assert_array_equal(again, more)
    with pytest.raises(ValueError, match="a step returns no 'ok': it returns 'y', 's'"):
        loop.step(x(1, 1), ["ok"])


def test_mistakes() -> None:
    loop, plain = both(2, 3)
    for feed, error, because in (
        ({}, ValueError, "Required inputs"),
        ({**x(2, 1), "pk": numbers(2, 2, 3, 4)}, ValueError, "the session keeps 'pk'"),
        ({**x(2, 1), "z": numbers(1)}, ValueError, "the model has no input 'z'"),
        (x(3, 1), UsageError, "the sequences of the cache are others"),
        (x(2, 0), UsageError, "at least one position, not 0"),
        ({"x": numbers(2, 1, 9)}, Exception, "INVALID_ARGUMENT|Got invalid dimensions"),
        ({"x": numbers(2, 1, 8).astype(np.float64)}, Exception, "Unexpected input data type"),
    ):
        with pytest.raises(error, match=because):
            loop.step(feed)
    with pytest.raises(Exception, match=r"ScatterND|INVALID_ARGUMENT|FAIL"):
        loop.step(x(2, 1), tokens=2)
    assert loop.length == 3
    step_alike(loop, plain, x(2, 1, 8))
    for method in (loop_of(PLAIN).past, lambda: loop_of(PLAIN).reorder([0])):
        with pytest.raises(UsageError, match="holds nothing yet"):
            method()
    with pytest.raises(UsageError, match="there are no"):
        loop.reorder([2])
    with pytest.raises(UsageError, match="is not that of the sequences"):
        loop.reorder([0], axis=2)
    with pytest.raises(UsageError, match="capacity must be at least 1, not 0"):
        loop_of(PLAIN, capacity=0)


def test_tokens_that_no_input_tells() -> None:
    text = """main (float[batch,2,n,4] k, int64[1] many, float[batch,2,past,4] pk)
        => (float[batch,2,T,4] ok) <int64[1] zero = {0}, int64[1] axis = {2}> {
            front = Slice (k, zero, many, axis) ok = Concat <axis = 2> (pk, front) }"""
    loop = loop_of(text)
    feed = {"k": numbers(2, 2, 5, 4), "many": np.array([3])}
    with pytest.raises(UsageError, match="say tokens="):
        loop.step(feed)
    assert loop.step(feed, tokens=3) == []
    np.testing.assert_array_equal(loop.past()["pk"], feed["k"][:, :, :3])


def test_threads() -> None:
    session = InferenceSession(model(PLAIN), shared_cache=True)

    def decode(number: int) -> Any:
        loop = session.decode_loop(2)
        return [loop.step(x(number + 1, 1, seed))[0] for seed in range(20)]

    for number, found in enumerate(in_threads(4, decode)):
        plain = PlainLoop(model(PLAIN), PAIRS, number + 1)
        expected = [plain.step(x(number + 1, 1, seed))[0] for seed in range(20)]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_what_the_session_says() -> None:
    session = InferenceSession(model(PLAIN), options(), shared_cache=True)
    assert [value.name for value in session.get_inputs()] == ["x"]
    assert [value.name for value in session.get_outputs()] == ["y"]
    session.decode_loop().step(x(1, 1))
    assert session.statistics.runs == 1
    for call in (lambda: session.run(None, x(1, 1)), session.io_binding):
        with pytest.raises(UsageError, match="run it by decode_loop"):
            call()
    with pytest.raises(UsageError, match="make it with shared_cache=True"):
        InferenceSession(model(PLAIN)).decode_loop()
    loop = session.decode_loop()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.decode_loop()
    loop.step(x(1, 1))  # what has begun goes on


def test_sessions_that_cannot_keep_a_cache() -> None:
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"host_ops": [Twice]}, "the model is one session"),
        ({"specialize_after": 2}, "the model is one session"),
        ({"run_type": "debug"}, "the model is one session"),
    )
    for arguments, because in refused:
        with pytest.raises(UsageError, match=because):
            InferenceSession(model(PLAIN), shared_cache=True, **arguments)
    with pytest.raises(UsageError, match="without groups"):
        InferenceSession(model(TWO_GROUPS), shared_cache=True)


@pytest.mark.parametrize("external", ["inline", "copy"])
def test_weights_stay_in_their_file(tmp_path: Path, external: Literal["inline", "copy"]) -> None:
    text = PLAIN.replace("h = Reshape (x, split)", "w = MatMul (x, weight) h = Reshape (w, split)")
    decoder = parse(
        text.replace("float[batch,2,past,4] pk,", "float[8,32] weight, float[batch,2,past,4] pk,", 1)
        .replace("int64[4] split = {0, 0, 2, 4}", "int64[4] split = {0, 0, 2, 4}, int64[2] half = {8, 24}")
        .replace("h = Reshape (w,", "z, rest = Split <axis = 2> (w, half) h = Reshape (z,")
    )
    weight = decoder.graph.inputs.pop(1)
    weight.const_value = ir.tensor(numbers(8, 32), name="weight")
    decoder.graph.register_initializer(weight)
    path = tmp_path / "decoder.onnx"
    save(decoder, path, external_data=external)
    own = options()
    loop = InferenceSession(path, own, shared_cache=True).decode_loop()
    plain = PlainLoop(path.read_bytes(), PAIRS, 1) if external == "inline" else PlainLoop(str(path), PAIRS, 1)
    step_alike(loop, plain, x(1, 2))
    step_alike(loop, plain, x(1, 1, 1))
    with pytest.raises(RuntimeError):  # the caller's own options have no entry more
        own.get_session_config_entry("session.model_external_initializers_file_folder_path")


def test_denormals_are_zero_in_a_loop_too() -> None:
    if denormals._environment() is None:
        pytest.skip("the flags of this machine are not known")
    text = """main (float[batch,seq,4] k, float[batch,past,4] pk) => (float[] y, float[batch,T,4] ok)
        <float s = {1.0000001}> { ok = Concat <axis = 1> (pk, k) y = Mul (k, s) }"""
    small = {"k": np.full((1, 2, 4), 1e-40, np.float32)}
    flushing = InferenceSession(model(text), options(), shared_cache=True, denormals_as_zero=True)
    assert not np.any(flushing.decode_loop().step(small)[0])
    assert np.all(loop_of(text).step(small)[0])
