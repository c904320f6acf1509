"""Small decoders with a cache, in text, and the plain loop that a decode loop must agree with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime

from ortopt.runtime.decoding.decode_loop import DecodeLoop
from ortopt.runtime.session import InferenceSession
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.runtime.side_by_side import quiet

STEPS = (3, 1, 2, 1)

PLAIN = """main (float[batch,seq,8] x, float[batch,2,past,4] pk, float[batch,2,past,4] pv)
    => (float[batch,seq,8] y, float[batch,2,T,4] ok, float[batch,2,T,4] ov)
    <int64[4] split = {0, 0, 2, 4}, int64[3] merged = {0, 0, 8}> {
        h = Reshape (x, split)
        k = Transpose <perm = [0, 2, 1, 3]> (h)
        v = Sin (k)
        ok = Concat <axis = 2> (pk, k)
        ov = Concat <axis = -2> (pv, v)
        kt = Transpose <perm = [0, 1, 3, 2]> (ok)
        s = MatMul (k, kt)
        p = Softmax <axis = -1> (s)
        o = MatMul (p, ov)
        t = Transpose <perm = [0, 2, 1, 3]> (o)
        y = Reshape (t, merged)
    }"""


def model(text: str, opset: int = 17) -> bytes:
    """A model's bytes."""
    return to_bytes(parse(text, opset))


def options() -> onnxruntime.SessionOptions:
    """One thread."""
    return quiet(intra_op_num_threads=1)


def loop_of(text: str, opset: int = 17, capacity: int = 2) -> DecodeLoop:
    """A decode loop of a decoder."""
    return InferenceSession(model(text, opset), options(), shared_cache=True).decode_loop(capacity)


class PlainLoop:
    """The same with ONNX Runtime alone, which copies the cache."""

    def __init__(self, source: bytes | str, pairs: Mapping[str, str], batch: int) -> None:
        self.session = onnxruntime.InferenceSession(source, options())
        self.pairs = pairs
        dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}
        sizes = {"batch": batch, "past": 0}
        self.past = {
            value.name: np.zeros([sizes.get(dim, dim) for dim in value.shape], dtypes[value.type])
            for value in self.session.get_inputs()
            if value.name in pairs
        }

    def step(self, feed: Mapping[str, Any]) -> list[Any]:
        """The outputs, presents apart."""
        names = [value.name for value in self.session.get_outputs()]
        results = dict(zip(names, self.session.run(None, {**feed, **self.past}), strict=True))
        self.past = {past: results[present] for past, present in self.pairs.items()}
        return [results[name] for name in names if name not in self.pairs.values()]


def fed(plain: PlainLoop, count: int, batch: int, length: int, seed: int, *, empty_rows: bool = True) -> dict[str, Any]:
    """Random inputs of a step; masks leave some positions, and one row nothing where ``empty_rows``."""
    rng = np.random.default_rng(seed)
    sizes = {"batch": batch, "seq": count, "T": length + count}
    feed = {}
    for value in plain.session.get_inputs():
        if value.name in plain.pairs:
            continue
        shape = [sizes.get(dim, dim) for dim in value.shape]
        if value.type == "tensor(bool)":
            feed[value.name] = rng.random(shape) < 0.7
            feed[value.name][..., -1, :] = False
            feed[value.name][..., 0] |= not empty_rows
        elif value.name == "mask":
            feed[value.name] = np.where(rng.random(shape) < 0.7, 0, -np.inf).astype(np.float32)
            feed[value.name][..., -1, :] = -np.inf
            if not empty_rows:
                feed[value.name][..., 0] = 0
        else:
            dtype = {"tensor(float16)": np.float16, "tensor(double)": np.float64}.get(value.type, np.float32)
            feed[value.name] = rng.standard_normal(shape).astype(dtype)
    return feed


def agree(
    text: str,
    opset: int = 17,
    *,
    batch: int = 2,
    steps: Sequence[int] = STEPS,
    tolerance: float = 1e-5,
    empty_rows: bool = True,
) -> DecodeLoop:
    """Run both loops, and compare outputs and caches after each step; the decode loop."""
    loop = loop_of(text, opset)
    pairs = {buffer.past: buffer.present for buffer in loop._session.buffers}
    plain = PlainLoop(model(text, opset), pairs, batch)
    for number, count in enumerate(steps):
        feed = fed(plain, count, batch, loop.length, number, empty_rows=empty_rows)
        expected = plain.step(feed)
        for own, other in zip(loop.step(feed), expected, strict=True):
            np.testing.assert_allclose(own, other, rtol=tolerance, atol=tolerance)
        for name, array in loop.past().items():
            np.testing.assert_allclose(array, plain.past[name], rtol=tolerance, atol=tolerance)
    assert loop.length == sum(steps)
    return loop
