"""Products of an image's channels with matrices become convolutions of single points."""

from __future__ import annotations

import re

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "matmul_conv_conversion"


def matrix(name: str, rows: int, columns: int, dtype: str = "float") -> str:
    numbers = ",".join(str(0.25 * ((5 * place) % 7 - 3)) for place in range(rows * columns))
    return f"{dtype}[{rows},{columns}] {name} = {{{numbers}}}"


def vector(name: str, size: int) -> str:
    return f"float[{size}] {name} = {{{','.join(str(0.5 * (place % 5) - 1) for place in range(size))}}}"


def model(
    body: str,
    *,
    image: str = "N,3,5,16",
    result: str = "N,16,3,5",
    dtype: str = "float",
    widths: tuple[int, int] = (16, 32),
    outputs: str = "",
) -> str:
    """A chain from x to y, with those of the constants that it reads."""
    outer, inner = widths
    known = {
        "a": matrix("a", outer, inner, dtype),
        "b": matrix("b", inner, outer, dtype),
        "s": matrix("s", 32, 32),
        "p": vector("p", 32),
        "q": vector("q", 16),
        "v": "float[5,1] v = {1, 2, 3, 4, 5}",
        "two": "float two = {2}",
    }
    read = [text for name, text in known.items() if re.search(rf"[(,] *{name} *[,)]", body)]
    return f"""main ({dtype}[{image}] x) => ({dtype}[{result}] y{outputs})
        <{", ".join(read)}> {{ {body} }}"""


TO_FRONT = "y = Transpose <perm = [0, 3, 1, 2]> (t)"
REWRITTEN = {
    "two products": (f"h = MatMul (x, a) t = MatMul (h, b) {TO_FRONT}", {"Conv": 2, "Transpose": 1}),
    "an activation": (f"h = MatMul (x, a) g = Relu (h) t = MatMul (g, b) {TO_FRONT}", {"Conv": 2, "Relu": 1}),
    "biases and a scale": (
        f"h = MatMul (x, a) i = Add (p, h) g = Tanh (i) m = MatMul (g, b) n = Sum (m, q) t = Mul (n, q) {TO_FRONT}",
        {"Conv": 2, "Tanh": 1, "Add": 1, "Sum": 1, "Mul": 1, "Transpose": 1},
    ),
    "a scalar": (
        f"h = MatMul (x, a) i = Div (h, two) t = MatMul (i, b) {TO_FRONT}",
        {"Conv": 2, "Div": 1, "Transpose": 1},
    ),
    "attributes": (
        f"h = MatMul (x, a) i = LeakyRelu <alpha = 0.5> (h) j = Sub (i, p) t = MatMul (j, b) {TO_FRONT}",
        {"Conv": 2, "LeakyRelu": 1, "Sub": 1, "Transpose": 1},
    ),
    "three products": (
        f"h = MatMul (x, a) i = MatMul (h, s) t = MatMul (i, b) {TO_FRONT}",
        {"Conv": 3, "Transpose": 1},
    ),
    "what stands before the first product": (
        f"o = Relu (x) h = MatMul (o, a) t = MatMul (h, b) {TO_FRONT}",
        {"Relu": 1, "Conv": 2, "Transpose": 1},
    ),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_rewrites(case: str) -> None:
    body, ops = REWRITTEN[case]
    check_rewrites(PASS, model(body), ops={"Transpose": 1} | ops)


@pytest.mark.parametrize("image", ["N,1,1,16", "2,7,1,16", "1,4,4,16"])
def test_sizes_of_images(image: str) -> None:
    body = f"h = MatMul (x, a) t = MatMul (h, b) {TO_FRONT}"
    batch, height, width, _ = image.split(",")
    text = model(body, image=image, result=f"{batch},16,{height},{width}")
    check_rewrites(PASS, text, ops={"Conv": 2, "Transpose": 1})


def test_channels_that_stay_last() -> None:
    """A residual keeps them so: a second transposition brings them back."""
    body = "h = MatMul (x, a) g = Relu (h) t = MatMul (g, b) y = Add (t, x)"
    check_rewrites(PASS, model(body, result="N,3,5,16"), ops={"Conv": 2, "Relu": 1, "Transpose": 2, "Add": 1})


def test_onnx_runtimes_own_activations() -> None:
    body = f"h = MatMul (x, a) g = com.microsoft.QuickGelu <alpha = 1.0> (h) t = MatMul (g, b) {TO_FRONT}"
    check_rewrites(PASS, model(body), ops={"Conv": 2, "com.microsoft::QuickGelu": 1, "Transpose": 1})


KEPT = {
    "it does not bring channels to the front": model(
        "h = MatMul (x, a) t = MatMul (h, b) r = Softmax (t) y = Transpose <perm = [0, 3, 2, 1]> (r)",
        result="N,16,5,3",
    ).replace("MatMul (h, b) r", "Neg (h) r"),
    "fewer than two products come before": model(
        f"t = MatMul (x, a) {TO_FRONT}", result="N,32,3,5"
    ),
    "the blocked kernels are for single precision only": model(
        f"h = MatMul (x, a) t = MatMul (h, b) {TO_FRONT}", dtype="double"
    ),
    "the image may be empty": model(
        f"h = MatMul (x, a) t = MatMul (h, b) {TO_FRONT}", image="N,H,5,16", result="N,16,H,5"
    ),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


CUT = {
    "another consumer": model(
        f"h = MatMul (x, a) t = MatMul (h, b) {TO_FRONT} z = Neg (h)", outputs=", float[N,3,5,32] z"
    ),
    "a number for each column": model(f"h = MatMul (x, a) i = Mul (h, v) t = MatMul (i, b) {TO_FRONT}"),
    "no whole blocks": model(f"h = MatMul (x, a) t = MatMul (h, b) {TO_FRONT}", widths=(16, 24)),
    "a square": model(f"h = MatMul (x, a) i = Mul (h, h) t = MatMul (i, b) {TO_FRONT}"),
}


@pytest.mark.parametrize("case", CUT)
def test_what_ends_a_chain(case: str) -> None:
    check_keeps(PASS, CUT[case], "fewer than two products come before")


def test_keeps_images_of_other_ranks() -> None:
    body = "h = MatMul (x, a) t = MatMul (h, b) y = Transpose <perm = [0, 2, 1]> (t)"
    check_keeps(PASS, model(body, image="N,3,16", result="N,16,3"), "")
