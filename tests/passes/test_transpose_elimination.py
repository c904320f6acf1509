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
        PASS, f"main (float[3,3] x) => (float[3,3] y) {{ t = Transpose {order} (x) y = Neg (t) }}", "it moves axes"
    )
