"""A scaled difference that is added is a sum of two scaled images."""

from __future__ import annotations

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "scaled_difference_conversion"
POOL = "AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"


def model(
    add: str = "x, m",
    mul: str = "c, d",
    *,
    sub: str = "p, x",
    factors: str = "[4,1,1] c = {0.5, -0.25, 2, 1}",
    other: str = f"{POOL} (x)",
    x: str = "Relu (v)",
    dtype: str = "float",
    image: str = "N,4,H,W",
    more: str = "",
) -> str:
    """What is pooled, without the image, scaled and added to it."""
    weight = ",".join(str((5 * place) % 7 - 3) for place in range(16))
    return f"""main ({dtype}[{image}] i) => ({dtype}[A,B,C,D] y{more})
        <{dtype}[4,4,1,1] w = {{{weight}}}, {dtype}{factors}> {{
        v = Conv (i, w)
        x = {x}
        p = {other}
        d = Sub ({sub})
        m = Mul ({mul})
        s = Add ({add})
        y = Conv (s, w)
    }}"""


AFTER = """main (float[N,4,H,W] i) => (float[A,B,C,D] y)
    <float[4,4,1,1] w = {WEIGHT}, float[4,1,1] c = {0.5, -0.25, 2, 1}, float[4,1,1] r = {0.5, 1.25, -1, 0}> {
    v = Conv (i, w) x = Relu (v)
    p = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)
    a = Mul (x, r) b = Mul (p, c) s = Add (a, b) y = Conv (s, w)
}""".replace("WEIGHT", ",".join(str((5 * place) % 7 - 3) for place in range(16)))


@pytest.mark.parametrize("add", ["x, m", "m, x"])
@pytest.mark.parametrize("mul", ["c, d", "d, c"])
def test_two_scaled_images(add: str, mul: str) -> None:
    check_rewrites(PASS, model(add, mul), AFTER)


KEPT = {
    "another order": (model(sub="x, p"), "something else than what is subtracted"),
    "another image": (model("v, m"), "something else than what is subtracted"),
    "a factor that is computed": (model(mul="d, v"), "constant"),
    "a factor for each row": (model(factors="[3,1] c = {1, 2, 3}", image="N,4,3,W"), "not one number a channel"),
    "a large factor": (model(factors="[4,1,1] c = {0.5, 9, 2, 1}"), "a factor is large"),
    "an infinite factor": (model(factors="[4,1,1] c = {0.5, inf, 2, 1}"), "not finite"),
    "an image of one pixel": (model(other="GlobalAveragePool (x)"), "not of the same size"),
    "what no convolution gave": (model(x="Relu (i)"), "not in the blocked layout"),
    "what leaves the layout": (model(x="Softmax <axis = 1> (v)"), "not in the blocked layout"),
    "double precision": (model(dtype="double"), "single precision only"),
    "a difference that is used elsewhere": (model(more=", float[E,F,G,I] d"), "used elsewhere"),
    "a product that is used elsewhere": (model(more=", float[E,F,G,I] m"), "used elsewhere"),
}


@pytest.mark.parametrize("name", KEPT)
def test_keeps(name: str) -> None:
    check_keeps(PASS, *KEPT[name])
