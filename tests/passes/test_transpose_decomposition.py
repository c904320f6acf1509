"""A Transpose that moves single elements is one or two exchanges of groups of axes."""

from pathlib import Path

import pytest

from ortopt.testing import check_rewrites, run
from tests.passes.sessions import loaded, passed

PASS = "transpose_decomposition"


def model(shape: str, perm: tuple[int, ...] | None, kind: str = "float") -> str:
    result = ",".join("ABCDEFG"[: shape.count(",") + 1])
    attribute = "" if perm is None else f"<perm = [{', '.join(map(str, perm))}]>"
    return f"main ({kind}[{shape}] x) => ({kind}[{result}] y) {{ y = Transpose {attribute} (x) }}"


REWRITTEN = {
    "axes of one": (model("1,8,3,8,1,32", (0, 3, 1, 2, 5, 4)), 1, 2),
    "one between": (model("4,16,1,8,8", (0, 4, 2, 3, 1)), 2, 3),
    "patches to an image": (model("2,8,8,4,4,3", (0, 5, 1, 3, 2, 4)), 2, 3),
    "an image to patches": (model("1,3,8,16,8,16", (0, 2, 4, 3, 5, 1)), 2, 3),
    "computed kernels": (model("1,2,8,16,3,8", (0, 1, 5, 3, 2, 4)), 2, 3),
    "a free batch": (model("N,8,8,4,4,3", (0, 5, 1, 3, 2, 4)), 2, 3),
    "four axes": (model("2,16,16,8", (0, 3, 2, 1)), 2, 3),
}


@pytest.mark.parametrize("case", REWRITTEN)
def test_it_is_exchanges(case: str) -> None:
    text, transposes, most = REWRITTEN[case]
    made = check_rewrites(PASS, text, ops={"Transpose": transposes})
    assert sum(node.op_type == "Reshape" for node in made.graph) <= most


@pytest.mark.parametrize("other", ["reshape_transpose_fusion", "transpose_merging", "transpose_optimizer"])
@pytest.mark.parametrize("case", REWRITTEN)
def test_no_other_pass_undoes_it(case: str, other: str) -> None:
    made = check_rewrites(PASS, REWRITTEN[case][0], numbers=False)
    changed, _ = run(other, made)
    assert not changed


@pytest.mark.parametrize("case", REWRITTEN)
def test_onnx_runtime_keeps_it(case: str, tmp_path: Path) -> None:
    """ONNX Runtime merges transpositions when it loads a model; not these."""
    text = REWRITTEN[case][0].replace("y = ", "a = Neg (x) t = ").replace("(x) }", "(a) y = Abs (t) }")
    made = passed(PASS, text)
    count = sum(node.op_type == "Transpose" for node in made.graph)
    assert loaded(made, tmp_path).count("Transpose") == count
