"""DepthToSpace is two transpositions of matrices."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "depth_to_space_decomposition"


@pytest.mark.parametrize("block", [2, 3])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("batch", ["1", "2", "0", "N"])
def test_it_is_two_transpositions(mode: str, block: int, batch: str) -> None:
    check_rewrites(
        PASS,
        f"main (float[{batch},{3 * block**2},4,5] x) => (float[A,B,C,D] y)"
        f' {{ y = DepthToSpace <blocksize = {block}, mode = "{mode}"> (x) }}',
        ops={"DepthToSpace": 0, "Transpose": 2, "Reshape": 3},
    )


test_it_stays = keeps(
    PASS,
    [
        ("slower", "main (float[1,16,4,5] x) => (float[A,B,C,D] y) { y = DepthToSpace <blocksize = 4> (x) }"),
        ("not fixed", "main (float[1,16,H,5] x) => (float[A,B,C,D] y) { y = DepthToSpace <blocksize = 2> (x) }"),
        ("no elements", "main (float[1,16,0,5] x) => (float[A,B,C,D] y) { y = DepthToSpace <blocksize = 2> (x) }"),
        ("no elements", "main (float[1,16,4,0] x) => (float[A,B,C,D] y) { y = DepthToSpace <blocksize = 2> (x) }"),
        ("measured", "main (double[1,16,4,5] x) => (double[A,B,C,D] y) { y = DepthToSpace <blocksize = 2> (x) }"),
    ],
)


def test_before_there_were_modes() -> None:
    check_rewrites(
        PASS,
        "main (float[1,16,4,5] x) => (float[A,B,C,D] y) { y = DepthToSpace <blocksize = 2> (x) }",
        ops={"DepthToSpace": 0, "Transpose": 2, "Reshape": 3},
        opset=10,
    )


def test_other_runtimes_keep_it() -> None:
    text = "main (float[1,16,4,5] x) => (float[A,B,C,D] y) { y = DepthToSpace <blocksize = 2> (x) }"
    check_keeps(PASS, text, "it serves ONNX Runtime", target="onnx")
