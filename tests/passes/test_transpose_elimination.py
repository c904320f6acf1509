"""A Transpose goes only if it leaves all axes in order."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "transpose_elimination"


@pytest.mark.parametrize(("shape", "order"), [("N,4", "<perm = [0, 1]>"), ("N", ""), ("0", "<perm = [0]>"), ("N", "")])
def test_goes(shape: str, order: str) -> None:
    check_rewrites(
        PASS,
        before=f"main (float[{shape}] x) => (float[{shape}] y) {{ t = Transpose {order} (x) y = Neg (t) }}",
        after="y = Neg (x)",
    )


@pytest.mark.parametrize("order", ["", "<perm = [1, 0]>"])
def test_keeps(order: str) -> None:
    check_keeps(
        PASS, f"main (float[3,3] x) => (float[3,3] y) {{ t = Transpose {order} (x) y = Neg (t) }}", "it moves elements"
    )


@pytest.mark.parametrize(
    ("shape", "order"), [("1,1,N", "[1, 0, 2]"), ("1,N,1", "[2, 1, 0]"), ("1,1,1", "[1, 2, 0]"), ("1,1,0", "[1, 0, 2]")]
)
def test_axes_of_size_1_change_places_unnoticed(shape: str, order: str) -> None:
    check_rewrites(
        PASS,
        before=f"main (float[{shape}] x) => (float[{shape}] y) {{ t = Transpose <perm = {order}> (x) y = Neg (t) }}",
        after="y = Neg (x)",
    )


@pytest.mark.parametrize(
    ("shape", "order", "result"),
    [("1,N,4", "[1, 0, 2]", "N,1,4"), ("1,2,1", "[1, 0, 2]", "2,1,1"), ("1,B,4", "[1, 0, 2]", "B,1,4")],
)
def test_an_axis_that_may_have_another_size_moves(shape: str, order: str, result: str) -> None:
    check_keeps(
        PASS,
        f"main (float[{shape}] x) => (float[{result}] y) {{ t = Transpose <perm = {order}> (x) y = Neg (t) }}",
        "it moves elements",
    )
