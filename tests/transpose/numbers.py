"""Counts of transposes and numbers, checked in this process: many small graphs, no time to start another."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime

from ortopt.serialization.save import to_bytes
from ortopt.testing import check_rewrites, parse

PASS = "transpose_optimizer"


def results(model: ir.Model, seed: int = 0) -> list[np.ndarray]:
    """What a model gives on seeded inputs, without any optimization; a dimension that is not fixed is 2."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(to_bytes(model), options, providers=["CPUExecutionProvider"])
    draw = np.random.default_rng(seed)
    feeds = {}
    for value in session.get_inputs():
        shape = [dim if isinstance(dim, int) else 2 for dim in value.shape]
        floats = np.asarray(draw.standard_normal(shape), dtype=np.float32)
        feeds[value.name] = (
            floats if value.type == "tensor(float)" else np.asarray(floats * 2, dtype=_TYPES[value.type])
        )
    return session.run(None, feeds)


_TYPES = {"tensor(float)": np.float32, "tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}


def check_same(before: ir.Model, after: ir.Model) -> None:
    """Check that two models give the same, but for rounding."""
    for had, has in zip(results(before), results(after), strict=True):
        assert had.dtype == has.dtype
        np.testing.assert_allclose(has, had, rtol=1e-5, atol=1e-5)


def check_count(text: str, transposes: int, *, opset: int = 17) -> ir.Model:
    """Check that so many transposes are left, and that the numbers stay.

    Returns:
        The rewritten model.
    """
    after = check_rewrites(PASS, text, ops={"Transpose": transposes}, opset=opset, numbers=False)
    check_same(parse(text, opset), after)
    return after
