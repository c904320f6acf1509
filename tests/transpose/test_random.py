"""Random graphs: the numbers stay, transposes get fewer, and the end is the end."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.analysis import shapes
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.serialization.checks.structure import validate
from ortopt.testing import parse, run
from ortopt.transpose.optimizer import cost
from tests.sessions import unoptimized
from tests.transpose.random_graphs import Graph

PASS = "transpose_optimizer"
SEEDS = 120
AT_ONCE = 10


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_numbers_stay_and_the_measure_falls(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        text = Graph(seed, 8 + seed % 14).text()
        model = parse(text)
        scope.attach(model, Options())
        shapes.infer_model(model)
        before = cost(model.graph)
        changed, _ = run(PASS, model)
        after = cost(model.graph)
        validate(model)
        if changed:
            assert after.number < before.number, text
            assert after.nbytes <= before.nbytes, text
            check_same(parse(text), model)
        again, _ = run(PASS, model)
        assert not again, text


def results(model: ir.Model, seed: int = 0) -> list[np.ndarray]:
    """What a model gives on seeded inputs, without any optimization; a dimension that is not fixed is 2."""
    session = unoptimized(model)
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
