"""A normalization over neighbouring channels is a pool and roots, on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.options import Options
from ortopt.testing import check_rewrites

PASS = "lrn_decomposition"
DEFAULT = Options()
ROOTS = {"Mul": 3, "AveragePool": 1, "Add": 1, "Sqrt": 2, "Div": 1}


def model(attributes: str = "size = 5", shape: str = "N,16,6,6", kind: str = "float") -> str:
    return f"main ({kind}[{shape}] x) => ({kind}[{shape}] y) {{ y = LRN <{attributes}> (x) }}"


def images(*shape: int, scale: float = 30.0) -> np.ndarray:
    return (scale * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)


REWRITTEN = {
    "defaults": ("size = 5", ROOTS),
    "two roots": ("size = 3, alpha = 0.02, beta = 0.75, bias = 2.0", ROOTS),
    "one root": ("size = 3, alpha = 0.02, beta = 0.5, bias = 0.1", {"Mul": 2, "AveragePool": 1, "Sqrt": 1, "Div": 1}),
    "no root": ("size = 7, alpha = 0.5, beta = 1.0", {"Mul": 2, "AveragePool": 1, "Sqrt": 0, "Div": 1}),
    "another power": ("size = 5, alpha = 0.02, beta = 0.6", {"Mul": 3, "AveragePool": 1, "Pow": 1}),
    "a window of one": ("size = 1, alpha = 0.02", ROOTS),
    "a window of all": ("size = 31, alpha = 0.3", ROOTS),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten(name: str) -> None:
    attributes, ops = REWRITTEN[name]
    check_rewrites(PASS, model(attributes), ops=ops, options=DEFAULT, inputs={"x": images(2, 16, 6, 6)})


@pytest.mark.parametrize("opset", [7, 13, 22])
def test_opsets(opset: int) -> None:
    check_rewrites(PASS, model(), ops=ROOTS, opset=opset, options=DEFAULT, inputs={"x": images(1, 16, 6, 6)})


def test_small_and_large_numbers() -> None:
    x = images(1, 16, 6, 6, scale=1.0)
    x[0, :, 0] *= 1e-30
    x[0, :, 1] *= 1e12
    x[0, :, 2] = 0.0
    x[0, :, 3] = -0.0
    check_rewrites(PASS, model("size = 5, alpha = 1.0"), ops=ROOTS, options=DEFAULT, inputs={"x": x})


def test_what_is_not_finite_stays_in_its_window() -> None:
    x = images(1, 16, 6, 6)
    x[0, -2, 0, :3] = np.nan, np.inf, -1e30
    check_rewrites(PASS, model(), ops=ROOTS, options=DEFAULT, inputs={"x": x})


def test_rewrites_once() -> None:
    after = check_rewrites(PASS, model(), ops=ROOTS, options=DEFAULT, inputs={"x": images(1, 16, 6, 6)})
    assert not any(node.op_type == "LRN" for node in after.graph)
