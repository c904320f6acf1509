"""QuickGelu of a scale becomes SiLU: its scale is in the weights above, and out of those below."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "quick_gelu_scale_folding"
WEIGHTS = "<float[2,2] w = {1, 2, 3, 4}, float[2] b = {5, -6}, float[2,2] v = {2, 4, 6, 8}>"
SCALED = "<float[2,2] w = {2, 4, 6, 8}, float[2] b = {10, -12}, float[2,2] v = {1, 2, 3, 4}>"
HEAD = "main (float[N,2] x) => (float[N,2] y)"


def block(add: str = "Add (m, b)", act: str = "<alpha = 2.0> (a)", below: str = "MatMul (q, v)") -> str:
    return f"{{ m = MatMul (x, w) a = {add} q = com.microsoft.QuickGelu {act} y = {below} }}"


@pytest.mark.parametrize("add", ["Add (m, b)", "Add (b, m)"])
@pytest.mark.parametrize("below", ["MatMul (q, v)", "Gemm <alpha = 0.5> (q, v, b0)", "Gemm <transA = 1> (q, v)"])
def test_between_layers(add: str, below: str) -> None:
    more = ", float[2] b0 = {7, 8}>" if "b0" in below else ">"
    batch = HEAD.replace("N", "2") if "transA" in below else HEAD
    check_rewrites(
        PASS,
        f"{batch} {WEIGHTS.replace('>', more)} {block(add, below=below)}",
        f"{batch} {SCALED.replace('>', more)} {block(add, '<alpha = 1.0> (a)', below)}",
    )


@pytest.mark.parametrize("bias", ["", ", b"])
def test_a_gemm_above(bias: str) -> None:
    def graph(weights: str, alpha: float) -> str:
        declared = (
            weights if bias else weights.replace("float[2] b = {5, -6}, ", "").replace("float[2] b = {10, -12}, ", "")
        )
        return f"""{HEAD} {declared} {{ a = Gemm <transB = 1> (x, w{bias})
            q = com.microsoft.QuickGelu <alpha = {alpha}> (a) y = MatMul (q, v) }}"""

    check_rewrites(PASS, graph(WEIGHTS, 2.0), graph(SCALED, 1.0))


def test_the_scale_of_clip_is_the_default() -> None:
    text = f"main (float[B,S,2] x) => (float[B,S,2] y) {WEIGHTS} {block(act='(a)')}"
    check_rewrites(PASS, text, ops={"com.microsoft::QuickGelu": 1})


def test_weights_that_both_layers_share() -> None:
    text = f"{HEAD} <float[2,2] w = {{1, 2, 3, 4}}, float[2] b = {{5, -6}}> {block(below='MatMul (q, w)')}"
    check_rewrites(
        PASS, text, f"{HEAD} {SCALED.replace('{1, 2, 3, 4}', '{0.5, 1, 1.5, 2}')} {block(act='<alpha = 1.0> (a)')}"
    )


NO_LAYER = "no linear layer is above it alone"
KEPT = {
    "SiLU already": ("its scale is 1", f"{HEAD} {WEIGHTS} {block(act='<alpha = 1.0> (a)')}"),
    "half of x": ("its scale is no factor", f"{HEAD} {WEIGHTS} {block(act='<alpha = 0.0> (a)')}"),
    "a step": ("a value that disappears", f"{HEAD} {WEIGHTS} {block(act='<alpha = 1e30> (a)')}"),
    "a weight that vanishes": ("overflow or vanish", f"{HEAD} {WEIGHTS.replace('{2, 4', '{1e-38, 4')} {block()}"),
    "no layer above": (NO_LAYER, f"{HEAD} {WEIGHTS} {block().replace('MatMul (x, w)', 'Relu (x)')}"),
    "two users of the sum": (NO_LAYER, f"{HEAD.replace('y)', 'y, float[N,2] a)')} {WEIGHTS} {block()}"),
    "two users of the activation": (
        "used elsewhere",
        f"{HEAD.replace('y)', 'y, float[N,2] q)')} {WEIGHTS} {block()}",
    ),
    "a gated layer": ("no Gemm or MatMul", f"{HEAD} {WEIGHTS} {block(below='Mul (q, x)')}"),
    "weights on the left": (
        "the layer below has no constant weights",
        f"{HEAD.replace('N', '2')} {WEIGHTS} {block(below='MatMul (v, q)')}",
    ),
    "weights of a caller": (
        "the weights are no constant",
        f"{HEAD.replace('x)', 'x, float[2,2] v)')} {WEIGHTS} {block()}",
    ),
    "a bias that is computed": (
        "no operand is a constant",
        f"{HEAD} {WEIGHTS} {block(add='Add (m, x)')}",
    ),
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)
