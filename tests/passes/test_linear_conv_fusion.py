"""A 1x1 convolution goes into the linear layer before it, if the columns are its channels."""

from ortopt import optimize
from ortopt.api import figures
from ortopt.testing import parse

NUMBERS = [str(((7 * i) % 11 - 5) / 8) for i in range(64)]


def floats(name: str, shape: str, count: int, start: int = 0) -> str:
    return f"float[{shape}] {name} = {{{', '.join(NUMBERS[start : start + count])}}}"


V, W = floats("v", "3,4", 12), floats("w", "5,4,1,1", 20, 12)
B, C = floats("b", "4", 4, 32), floats("c", "5", 5, 36)
TARGET = "int64[4] t = {0, 4, 2, 3}"
TO_IMAGE = "u = Transpose <perm = [0, 2, 1]> (s) i = Reshape (u, t)"


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
