"""Exponential linear units are arithmetic with one exponential, on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt.options import Options
from ortopt.testing import check_rewrites

PASS = "elu_decomposition"
DEFAULT = Options()
EDGES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-30, -1e-8, -1e-3, -0.5, -87.0, -104.0, 90.0, 3e38, -3e38)


def model(
    nodes: str = "y = Elu (x)", size: str = "N,64,8,8", kind: str = "float", before: str = "x = Add (v, zero)"
) -> str:
    names = ("zero", "one")
    numbers = [f"{kind} {name} = {{{place}}}" for place, name in enumerate(names) if name in before + nodes]
    return f"main ({kind}[{size}] v) => ({kind}[{size}] y) <{', '.join(numbers)}> {{ {before} {nodes} }}"


@pytest.mark.parametrize(
    "nodes", ["y = Elu (x)", "y = Elu <alpha = 1.5> (x)", "y = Celu <alpha = 0.3> (x)", "y = Selu (x)"]
)
def test_numbers_at_the_edges(nodes: str) -> None:
    x = np.resize(np.array(EDGES, np.float32), (1, 64, 8, 8))
    check_rewrites(PASS, model(nodes), inputs={"v": x}, options=DEFAULT)
