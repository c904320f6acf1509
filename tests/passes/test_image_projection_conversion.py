"""Products of rows before and behind an image's convolutions become convolutions of points."""

from __future__ import annotations

import re

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "image_projection_conversion"
SIZES = {"a": (16, 32), "b": (32, 16), "e": (16, 16), "f": (32, 24), "k": (24, 32)}
DEPTHWISE = "Conv <group = 32, pads = [1, 1, 1, 1]>"
TO_FRONT = "Transpose <perm = [0, 3, 1, 2]>"
TO_END = "Transpose <perm = [0, 2, 3, 1]>"


def numbers(count: int) -> str:
    return ",".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(count))


def model(
    body: str, *, x: str = "N,6,16", y: str = "", dtype: str = "float", outputs: str = "", operands: str = ""
) -> str:
    """A graph from x to y, with those of the constants that it reads."""
    known = {name: f"{dtype}[{m},{n}] {name} = {{{numbers(m * n)}}}" for name, (m, n) in SIZES.items()}
    known |= {
        "w": f"{dtype}[32,1,3,3] w = {{{numbers(288)}}}",
        "p": f"{dtype}[32] p = {{{numbers(32)}}}",
        "q": f"{dtype}[16] q = {{{numbers(16)}}}",
        "r": f"{dtype}[6,1] r = {{{numbers(6)}}}",
        "one": f"{dtype}[1,1,1] one = {{2}}",
        "half": f"{dtype} half = {{0.5}}",
        "wide": "int64[4] wide = {0, 2, 3, 32}",
        "turned": "int64[4] turned = {0, 3, 32, 2}",
        "rows": "int64[3] rows = {0, 6, 32}",
        "merged": "int64[3] merged = {-1, 6, 32}",
        "taken": "int64[3] taken = {0, 12, 16}",
        "halves": "int64[4] halves = {-1, 1, 3, 32}",
    }
    read = [text for name, text in known.items() if re.search(rf"[(,] *{name} *[,)]", body)]
    return f"""main ({dtype}[{x}] x{operands}) => ({dtype}[{y}] y{outputs}) <{", ".join(read)}> {{ {body} }}"""


def widened(chain: str, **more: str) -> str:
    """Rows that `chain` makes h of, as an image of 2x3."""
    return model(f"{chain} i = Reshape (h, wide) t = {TO_FRONT} (i) y = {DEPTHWISE} (t, w)", **more)


def narrowed(chain: str, **more: str) -> str:
    """An image that becomes rows h, of which `chain` makes y."""
    return model(f"c = {DEPTHWISE} (x, w) t = {TO_END} (c) h = Reshape (t, rows) {chain}", **({"x": "N,32,2,3"} | more))


WIDENED = {
    "a product": ("h = MatMul (x, a)", {}),
    "a bias": ("m = MatMul (x, a) h = Add (m, p)", {}),
    "a bias that comes first, as a sum": ("m = MatMul (x, a) h = Sum (p, m)", {}),
    "one number": ("m = MatMul (x, a) h = Add (m, one)", {}),
    "a scalar": ("m = MatMul (x, a) h = Add (half, m)", {}),
    "an activation": ("m = MatMul (x, a) n = Add (m, p) h = Relu (n)", {"Relu": 1}),
    "activations": ("m = MatMul (x, a) n = HardSigmoid <alpha = 0.5> (m) h = Tanh (n)", {"HardSigmoid": 1, "Tanh": 1}),
}


@pytest.mark.parametrize("case", WIDENED)
def test_a_product_that_widens(case: str) -> None:
    chain, ops = WIDENED[case]
    ops = {"Conv": 2, "Transpose": 1, "Reshape": 1, "MatMul": 0, "Add": 0, "Sum": 0} | ops
    check_rewrites(PASS, widened(chain), ops=ops)


NARROWED = {
    "a product": ("y = MatMul (h, b)", {}),
    "a bias": ("m = MatMul (h, b) y = Add (q, m)", {}),
    "a scalar, as a sum": ("m = MatMul (h, b) y = Sum (m, half)", {}),
    "an activation": ("g = Sigmoid (h) m = MatMul (g, b) y = Add (m, q)", {"Sigmoid": 1}),
    "what comes behind": ("m = MatMul (h, b) n = Add (m, q) y = Relu (n)", {"Relu": 1}),
    "a sum of rows behind": ("m = MatMul (h, b) y = Add (m, r)", {"Add": 1}),
}


@pytest.mark.parametrize("case", NARROWED)
def test_a_product_that_narrows(case: str) -> None:
    chain, ops = NARROWED[case]
    ops = {"Conv": 2, "Transpose": 1, "Reshape": 1, "MatMul": 0, "Add": 0, "Sum": 0} | ops
    check_rewrites(PASS, narrowed(chain), ops=ops)


def test_both_sides_of_a_convolution() -> None:
    body = f"""m = MatMul (x, a) n = Add (m, p) i = Reshape (n, wide) t = {TO_FRONT} (i) c = {DEPTHWISE} (t, w)
        u = {TO_END} (c) h = Reshape (u, rows) g = Gelu (h) o = MatMul (g, b) y = Add (o, q)"""
    check_rewrites(
        PASS, model(body), ops={"Conv": 3, "Gelu": 1, "Transpose": 2, "Reshape": 2, "MatMul": 0, "Add": 0}, opset=20
    )


def test_onnx_runtimes_own_activation() -> None:
    chain = "g = com.microsoft.QuickGelu <alpha = 1.0> (h) y = MatMul (g, b)"
    check_rewrites(PASS, narrowed(chain), ops={"Conv": 2, "com.microsoft::QuickGelu": 1, "MatMul": 0})


def test_images_that_are_no_rows() -> None:
    wide = model(f"h = MatMul (x, a) t = {TO_FRONT} (h) y = {DEPTHWISE} (t, w)", x="N,2,3,16")
    check_rewrites(PASS, wide, ops={"Conv": 2, "Transpose": 1, "MatMul": 0, "Reshape": 0})
    narrow = model(f"c = {DEPTHWISE} (x, w) h = {TO_END} (c) y = MatMul (h, b)", x="N,32,2,3")
    check_rewrites(PASS, narrow, ops={"Conv": 2, "Transpose": 1, "MatMul": 0, "Reshape": 0})


IMAGE = f"h = MatMul (x, a) i = Reshape (h, wide) t = {TO_FRONT} (i)"
KEPT = {
    "it does not bring channels to the front": model(
        "h = MatMul (x, a) i = Reshape (h, wide) y = Transpose <perm = [0, 3, 2, 1]> (i)"
    ),
    "the image is a result of the graph": model(
        f"{IMAGE} y = {DEPTHWISE} (t, w)", outputs=", float[N,32,2,3] t"
    ),
    "something else than convolutions in blocks reads the image": model(
        f"{IMAGE} c = {DEPTHWISE} (t, w) y = Add (c, t)"
    ),
    "the product gives no more columns": model(
        f"h = MatMul (x, b) i = Reshape (h, i4) t = {TO_FRONT} (i) y = Conv (t, v)", x="N,6,32",
        operands="",
    ).replace("<", "<int64[4] i4 = {0, 2, 3, 16}, float[16,16,1,1] v = {" + numbers(256) + "}, ", 1),
    "the product gives no fewer columns": narrowed("m = MatMul (h, s) y = Relu (m)").replace(
        "<", "<float[32,32] s = {" + numbers(1024) + "}, ", 1
    ),
    "the product is used elsewhere": widened(
        "h = MatMul (x, a) z = Neg (h)", outputs=", float[N,6,32] z"
    ),
    "what is activated is used elsewhere": widened(
        "m = MatMul (x, a) h = Relu (m) z = Neg (h)", outputs=", float[N,6,32] z"
    ),
    "what is reshaped is used elsewhere": model(
        f"{IMAGE} y = {DEPTHWISE} (t, w) z = Neg (i)", outputs=", float[N,2,3,32] z"
    ),
    "the channels fill no blocks": narrowed("y = MatMul (h, f)"),
    "the matrix is no constant": widened("h = MatMul (x, u)", operands=", float[16,32] u"),
    "the operand is no matrix": widened("h = MatMul (x, u)").replace(
        "<", "<float[1,16,32] u = {" + numbers(512) + "}, ", 1
    ),
    "what is added is not one number a column": widened("m = MatMul (x, a) h = Add (m, r)"),
    "it is no product": widened("h = Softmax (x)", x="N,6,32"),
    "channels come apart": model(
        f"m = MatMul (x, b) i = Reshape (m, v) t = {TO_FRONT} (i) y = {DEPTHWISE} (t, w)", x="N,12,32"
    ).replace("<", "<int64[4] v = {0, 2, 3, 32}, ", 1),
    "the axes come apart into others": model(
        f"h = MatMul (x, a) i = Reshape (h, halves) t = {TO_FRONT} (i) y = {DEPTHWISE} (t, w)"
    ),
    "other axes are joined": narrowed("y = MatMul (h, b)", x="N,32,3,2").replace(
        "h = Reshape (t, rows)", "h = Reshape (t, thirds)"
    ).replace("<", "<int64[3] thirds = {-1, 3, 32}, ", 1),
    "a size of the image is not fixed": model(
        f"h = MatMul (x, a) t = {TO_FRONT} (h) y = {DEPTHWISE} (t, w)", x="N,H,3,16"
    ),
    "the image is empty": model(
        f"h = MatMul (x, a) t = {TO_FRONT} (h) y = {DEPTHWISE} (t, w)", x="N,0,3,16"
    ),
    "the image is used elsewhere": narrowed("y = MatMul (h, b) z = Neg (c)", outputs=", float[N,32,2,3] z"),
    "the channels that are last are used elsewhere": model(
        f"c = {DEPTHWISE} (x, w) h = {TO_END} (c) y = MatMul (h, b) z = Neg (h)", x="N,32,2,3",
        outputs=", float[N,2,3,32] z",
    ),
    "the image is not in the blocked layout": model(
        f"t = {TO_END} (x) h = Reshape (t, rows) y = MatMul (h, b)", x="N,32,2,3"
    ),
    "it does not bring channels to the end": model(
        f"c = {DEPTHWISE} (x, w) h = Transpose <perm = [0, 3, 2, 1]> (c) y = MatMul (h, b)", x="N,32,2,3"
    ),
    "the blocked kernels are for single precision only": widened("h = MatMul (x, a)", dtype="double"),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def test_keeps_a_sum_of_two_products() -> None:
    check_keeps(PASS, widened("m = MatMul (x, a) n = Neg (m) h = Add (m, n)"), "the product is used elsewhere")


def test_keeps_products_of_many_columns() -> None:
    matrices = f"float[208,224] a = {{{numbers(208 * 224)}}}, float[224,208] b = {{{numbers(224 * 208)}}}"
    filled = f"<{matrices}, float[224,1,1,1] w = {{{numbers(224)}}}, int64[4] s = {{0, 2, 3, 224}}>"
    wide = f"""main (float[N,6,208] x) => (float[] y) {filled} {{
        h = MatMul (x, a) i = Reshape (h, s) t = {TO_FRONT} (i) y = Conv <group = 224> (t, w) }}"""
    check_keeps(PASS, wide, "but with columns 1 to 192")
    narrow = f"""main (float[N,224,2,3] x) => (float[] y) {filled} {{
        c = Conv <group = 224> (x, w) t = {TO_END} (c) y = MatMul (t, b) }}"""
    check_keeps(PASS, narrow, "but with columns 1 to 192")
