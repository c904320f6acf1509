"""A normalization over neighbouring channels is a pool and roots, on the CPU."""

from __future__ import annotations

import numpy as np

from ortopt.options import Options
from ortopt.testing import check_rewrites

PASS = "lrn_decomposition"
DEFAULT = Options()
ROOTS = {"Mul": 3, "AveragePool": 1, "Add": 1, "Sqrt": 2, "Div": 1}


def model(attributes: str = "size = 5", shape: str = "N,16,6,6", kind: str = "float") -> str:
    return f"main ({kind}[{shape}] x) => ({kind}[{shape}] y) {{ y = LRN <{attributes}> (x) }}"


def images(*shape: int, scale: float = 30.0) -> np.ndarray:
    return (scale * np.random.default_rng(0).standard_normal(shape)).astype(np.float32)


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
