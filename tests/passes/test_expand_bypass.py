"""Operands are broadcast by the op that takes them; where the result would shrink they stay."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "expand_bypass"


@pytest.mark.parametrize("order", ["e, y", "y, e"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (1, 1)])
def test_expand(order: str, shape: tuple[int, ...]) -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[1,L] x, float[B,L] y) => (float[B,L] z) {{
            s = Shape (y) e = Expand (x, s) z = Sub ({order}) }}""",
        after=f"z = Sub ({order.replace('e', 'x')})",
        inputs={"x": np.full((1, shape[1]), 2, np.float32), "y": np.ones(shape, np.float32)},
    )


def test_constant_of_shape() -> None:
    check_rewrites(
        PASS,
        before="""main (int64[B,L] x) => (int64[B,L] z) {
            s = Shape (x) c = ConstantOfShape <value = int64[1] {5}> (s) z = Min (x, c) }""",
        after="c = Constant <value = int64 {5}> () z = Min (x, c)",
    )
    check_rewrites(
        PASS,
        before="main (float[B,L] x) => (float[B,L] z) { s = Shape (x) c = ConstantOfShape (s) z = Max (c, x) }",
        after="c = Constant <value = float {0}> () z = Max (c, x)",
    )


def test_only_the_users_that_broadcast() -> None:
    check_rewrites(
        PASS,
        before="""main (float[1,L] x, float[B,L] y) => (float[B,L] z, float[B,L] w) {
            s = Shape (y) e = Expand (x, s) z = Mul (e, y) w = Exp (e) }""",
        after="s = Shape (y) e = Expand (x, s) z = Mul (x, y) w = Exp (e)",
    )


def test_in_a_branch_of_a_function_where_from_outside() -> None:
    check_rewrites(
        PASS,
        before="""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[1,4] x, float[2,4] y, bool c) => (float[2,4] z) { z = f.F (x, y, c) }
            <domain: "f", opset_import: ["" : 17]>
            F (x, y, c) => (z) {
                s = Shape (y)
                e = Expand (x, s)
                k = ConstantOfShape <value = float[1] {2.0}> (s)
                z = If (c) <
                    then_branch = t () => (float[2,4] u) { u = Add (e, y) },
                    else_branch = o () => (float[2,4] v) { v = Div (y, k) }
                >
            }""",
        ops={"Expand": 0, "ConstantOfShape": 0, "Shape": 0},
    )


KEPT = {
    "Mul may get its shape from it": """main (float[1,L] x, float[L] y, int64[2] s) => (float[N,L] z) {
        e = Expand (x, s) z = Mul (e, y) }""",
    "MatMul needs it as large as it is": """main (float[1,L] x, float[B,L] y, float[L,B] w) => (float[B,B] z) {
        s = Shape (y) e = Expand (x, s) z = MatMul (e, w) }""",
}


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(PASS, KEPT[because], because)


def test_an_operand_that_might_not_fit() -> None:
    """N and B differ perhaps: what fails in the model must not become what does not."""
    check_keeps(
        PASS,
        """main (float[1,L] x, float[B,L] y, float[N,L] w) => (float[?,L] z) {
            s = Shape (y) e = Expand (x, s) z = Add (e, w) }""",
        "Add may get its shape from it",
    )
