"""PRelu(x, A) becomes Max(x, A · x) on the CPU."""

import numpy as np

from ortopt.options import Options
from ortopt.testing import check_rewrites

PASS = "prelu_decomposition"
DEFAULT = Options()
SLOPES = "float[4,1,1] a = {0.1, 0.25, 0.5, 1.0}"


def model(x: str = "N,4,32,32", slopes: str = SLOPES, kind: str = "float", more: str = "") -> str:
    return f"main ({kind}[{x}] x{more}) => ({kind}[{x}] y) <{slopes}> {{ y = PRelu (x, a) }}".replace("<>", "")


def test_decomposes() -> None:
    x = np.random.default_rng(0).standard_normal((2, 4, 32, 32)).astype(np.float32)
    x.reshape(-1)[:6] = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40)
    after = f"main (float[N,4,32,32] x) => (float[N,4,32,32] y) <{SLOPES}> {{ m = Mul (x, a) y = Max (x, m) }}"
    check_rewrites(PASS, model(), after, options=DEFAULT, inputs={"x": x})
