"""DepthToSpace is two transpositions of matrices."""

import pytest

from ortopt.testing import check_rewrites

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
