"""A 1x1 convolution goes into the linear layer before it, if the columns are its channels."""

import pytest

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import check_rewrites, parse
from tests.passes.tables import keeps

PASS = "linear_conv_fusion"
NUMBERS = [str(((7 * i) % 11 - 5) / 8) for i in range(64)]


def floats(name: str, shape: str, count: int, start: int = 0) -> str:
    return f"float[{shape}] {name} = {{{', '.join(NUMBERS[start : start + count])}}}"


V, W = floats("v", "3,4", 12), floats("w", "5,4,1,1", 20, 12)
B, C = floats("b", "4", 4, 32), floats("c", "5", 5, 36)
TARGET = "int64[4] t = {0, 4, 2, 3}"
TO_IMAGE = "u = Transpose <perm = [0, 2, 1]> (s) i = Reshape (u, t)"


@pytest.mark.parametrize(
    ("layer", "convolution", "constants", "adds"),
    [
        ("p = MatMul (x, v) s = Add (p, b)", "Conv (i, w, c)", f"{B}, {C}", 1),
        ("p = MatMul (x, v) s = Add (b, p)", "Conv <kernel_shape = [1, 1]> (i, w)", B, 1),
        ("s = MatMul (x, v)", "Conv <pads = [0, 0, 0, 0]> (i, w, c)", C, 1),
        ("s = MatMul (x, v)", "Conv (i, w)", "", 0),
    ],
)
def test_columns_that_become_an_image(layer: str, convolution: str, constants: str, adds: int) -> None:
    more = f", {constants}" if constants else ""
    check_rewrites(
        PASS,
        f"main (float[N,6,3] x) => (float[N,5,2,3] y) <{V}, {W}, {TARGET}{more}> {{"
        f" {layer} {TO_IMAGE} y = {convolution} }}",
        ops={"Conv": 0, "MatMul": 1, "Add": adds, "Transpose": 1, "Reshape": 1},
    )


@pytest.mark.parametrize(
    ("given", "result", "constants", "path"),
    [
        ("N,3", "N,5,1,1", ", int64[2] a = {2, 3}", "i = Unsqueeze (s, a)"),
        ("N,3", "N,5,1", ", int64[3] a = {-1, 4, 1}", "i = Reshape (s, a)"),
        ("6,3", "6,5,1", ", int64[3] a = {6, -1, 1}", "i = Reshape (s, a)"),
        ("1,4,3", "4,5,1", ", int64[3] a = {4, 0, 1}", "i = Reshape (s, a)"),
        ("2,1,3", "2,5,1", ", int64[1] d = {1}, int64[1] a = {2}", "q = Squeeze (s, d) i = Unsqueeze (q, a)"),
        ("N,3", "N,5,1", ", int64[3] a = {0, 0, 1}", "i = Reshape (s, a)"),
        ("2,3,3", "2,5,3", "", "i = Transpose <perm = [0, 2, 1]> (s)"),
    ],
)
def test_paths(given: str, result: str, constants: str, path: str) -> None:
    """Channels that a Reshape names are those of the result; it may copy or infer them, too."""
    weight = W if result.count(",") == 3 else W.replace("5,4,1,1", "5,4,1")
    check_rewrites(
        PASS,
        f"main (float[{given}] x) => (float[{result}] y) <{V}, {weight}{constants}> {{"
        f" s = MatMul (x, v) {path} y = Conv (i, w) }}",
        ops={"Conv": 0, "MatMul": 1},
    )


def model(
    layer: str = "s = MatMul (x, v)",
    weight: str = W,
    first: str = V,
    attributes: str = "",
    given: str = "N,6,3",
    more: str = "",
    outputs: str = "float[A,B,C,D] y",
    to_image: str = TO_IMAGE,
    target: str = TARGET,
) -> str:
    return (
        f"main (float[{given}] x) => ({outputs}) <{first}, {weight}, {target}{more}> {{"
        f" {layer} {to_image} y = Conv {attributes} (i, w) }}"
    )


KEPT = {
    "the kernel is larger than a point": model(weight=floats("w", "3,4,1,2", 24), target="int64[4] t = {0, 4, 2, 3}"),
    "groups, strides or padding": model(weight=floats("w", "2,2,1,1", 4), attributes="<group = 2>"),
    "has groups, strides": model(attributes="<strides = [2, 2]>"),
    "strides or padding": model(attributes="<pads = [1, 1, 1, 1]>"),
    "used elsewhere": model(outputs="float[A,B,C,D] y, float[E,F,G,H] i"),
    "no MatMul comes before": model(layer="s = Mul (x, v)", given="N,6,4", first=floats("v", "4", 4)),
    "MatMul's result is used elsewhere": model(layer="p = MatMul (x, v) s = Add (p, p)"),
    "it is not one number a channel": model(
        layer="p = MatMul (x, v) s = Add (p, b)", more=", " + floats("b", "6,1", 6), given="2,6,3"
    ),
    "the columns are not the channels": model(
        weight=floats("w", "5,6,1,1", 30), target="int64[4] t = {0, 6, 4, 1}", to_image="i = Reshape (s, t)"
    ),
    "may be cut or joined": model(to_image="i = Reshape (s, t)"),
    "a single column": model(
        weight=floats("w", "1,4,1", 4), target="int64[1] t = {2}", given="1,2,1,3",
        to_image="q = Squeeze (s) i = Unsqueeze (q, t)",
    ),
    "to another axis": model(
        weight=floats("w", "5,4,1", 20), target="int64[3] t = {1, 4, 0}", given="1,1,4,3",
        to_image="e = Transpose <perm = [0, 1, 3, 2]> (s) i = Reshape (e, t)",
    ),
    "larger than all that stay": model(
        layer="p = MatMul (x, v) s = Add (p, b)", more=", float[4] b = {1e30, 1, 1, 1}",
        weight="float[5,4,1,1] w = {" + ", ".join(["1e-12"] * 20) + "}",
    ),
    "both weights together are larger": model(
        first=floats("v", "3,1", 3), weight=floats("w", "5,1,1,1", 5), target="int64[4] t = {0, 1, 2, 3}"
    ),
    "would not be finite": model(
        first="float[3,4] v = {" + ", ".join(["1e30"] * 12) + "}",
        weight="float[5,4,1,1] w = {" + ", ".join(["1e30"] * 20) + "}",
    ),
    "larger or smaller": model(
        first="float[3,4] v = {" + ", ".join(["1e30"] * 12) + "}",
        weight="float[5,4,1,1] w = {" + ", ".join(["1e-12"] * 20) + "}",
    ),
    "not a constant": f"""main (float[N,6,3] x, float[3,4] v) => (float[A,B,C,D] y) <{W}, {TARGET}> {{
        s = MatMul (x, v) {TO_IMAGE} y = Conv (i, w) }}""",
}  # fmt: skip


test_it_stays = keeps(PASS, KEPT)


def test_a_head_whose_projection_goes_before_the_enlargement() -> None:
    """The projection is taken apart at level 3, and each part goes into the linear layer before it."""
    layers = [
        f"p{i} = MatMul (x{i}, v) s{i} = Add (p{i}, b)"
        f" u{i} = Transpose <perm = [0, 2, 1]> (s{i}) i{i} = Reshape (u{i}, t{i})"
        for i in (0, 1)
    ]
    weights = f"{V}, {B}, {floats('w', '4,8,1,1', 32)}"
    shapes = "int64[4] t0 = {1, 4, 8, 8}, int64[4] t1 = {1, 4, 4, 4}, float[4] f = {1, 1, 2, 2}"
    model = parse(
        f"main (float[1,64,3] x0, float[1,16,3] x1) => (float[] y) <{weights}, {shapes}> {{"
        f' {" ".join(layers)} r = Resize <mode = "linear"> (i1, , f) j = Concat <axis = 1> (i0, r) y = Conv (j, w) }}'
    )
    ops = figures(optimize(model, level=3, verify=False).model).ops
    assert "Conv" not in ops
    assert "Concat" not in ops
