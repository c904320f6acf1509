"""Convolutions of one input whose results are added become one."""

from __future__ import annotations

import numpy as np

from ortopt.testing import check_rewrites

PASS = "parallel_conv_merging"
HEAD = "main (float[N,2,H,W] x) => (float[A,B,C,D] y)"
WEIGHTS = {
    "u": "float[2,2,1,1] u = {1, 2, 3, 4}",
    "v": "float[2,2,1,1] v = {0.5, -2, 7, 0.25}",
    "w": f"float[2,2,3,3] w = {{{', '.join(str(place % 7 - 2) for place in range(36))}}}",
    "t": f"float[2,2,3,1] t = {{{', '.join(str(place % 5 - 1) for place in range(12))}}}",
    "d": "float[2,1,1,1] d = {2, 3}",
    "e": f"float[2,1,3,3] e = {{{', '.join(str(place % 5 - 1) for place in range(18))}}}",
    "o": "float[1,2,1,1] o = {2, 3}",
    "b": "float[2] b = {1, 2}",
    "c": "float[2] c = {0.5, 3}",
    "g": "float[2] g = {2, -1}",
    "huge": "float[2,2,1,1] huge = {3e38, 1, 1, 1}",
}


def model(nodes: str, head: str = HEAD) -> str:
    words = set(nodes.replace("(", " ").replace(")", " ").replace(",", " ").split())
    return f"{head} <{', '.join(text for name, text in WEIGHTS.items() if name in words)}> {{ {nodes} }}"


PADS = "<pads = [1, 1, 1, 1]>"
MERGED = {
    "equal kernels": "p = Conv (x, u) q = Conv (x, v) y = Add (p, q)",
    "biases": "p = Conv (x, u, b) q = Conv (x, v, c) y = Add (p, q)",
    "one bias": "p = Conv (x, u) q = Conv (x, v, c) y = Add (p, q)",
    "a point in a larger kernel": f"p = Conv (x, u, b) q = Conv {PADS} (x, w) y = Add (p, q)",
    "a point behind the larger kernel": f"p = Conv {PADS} (x, w) q = Conv (x, u) y = Add (p, q)",
    "a column in a larger kernel": f"p = Conv <pads = [1, 0, 1, 0]> (x, t) q = Conv {PADS} (x, w) y = Add (p, q)",
    "three": f"p = Conv (x, u) q = Conv {PADS} (x, w) r = Conv (x, v) s = Add (p, q) y = Add (r, s)",
    "strides": "p = Conv <strides = [2, 2]> (x, u) q = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w) y = Add (p, q)",  # noqa: E501
    "dilations": "p = Conv (x, u) q = Conv <pads = [2, 2, 2, 2], dilations = [2, 2]> (x, w) y = Add (p, q)",
    "channels by themselves": "p = Conv <group = 2> (x, d) q = Conv <group = 2, pads = [1, 1, 1, 1]> (x, e) y = Add (p, q)",  # noqa: E501
    "a normalization": f"p = BatchNormalization (x, g, b, c, b) q = Conv {PADS} (x, w) y = Add (p, q)",
    "a normalization of channels by themselves": "p = BatchNormalization (x, g, b, c, b) q = Conv <group = 2, pads = [1, 1, 1, 1]> (x, e) y = Add (q, p)",  # noqa: E501
    "an uneven margin": "p = Conv (x, u) q = Conv <pads = [2, 0, 0, 2]> (x, w) y = Add (p, q)",
}


def test_infinities_and_nan_reach_the_same_elements() -> None:
    """Of weights of one sign; of others, opposite infinities have made a NaN of what is infinite now."""
    x = np.ones((1, 2, 5, 5), np.float32)
    x[0, 0, 1, 1], x[0, 1, 3, 3], x[0, 0, 4, 0] = np.inf, -np.inf, np.nan
    numbers = ", ".join(str(place % 7 + 1) for place in range(36))
    text = model(MERGED["a point in a larger kernel"]).replace(WEIGHTS["w"], f"float[2,2,3,3] w = {{{numbers}}}")
    check_rewrites(PASS, text, ops={"Conv": 1}, inputs={"x": x})
