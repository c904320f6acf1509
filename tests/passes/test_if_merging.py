"""Equal branches are one; a result that both give alike does not need the If."""

from ortopt.testing import check_rewrites, parse, run

PASS = "if_merging"


def branches(then: str, other: str, more: str = "") -> str:
    return f"""main (float[2] x, float[2] z, bool c) => (float[2] y) {more} {{
        a = If (c) <
            then_branch = t () => (float[2] u) {{ {then} }},
            else_branch = e () => (float[2] v) {{ {other} }}
        >
        y = Relu (a)
    }}"""


def test_random_branches_that_are_equal_draw_once_as_before() -> None:
    model = parse(branches("u = RandomNormalLike (x)", "v = RandomNormalLike (x)"))
    changed, _ = run(PASS, model)
    assert changed
    assert [node.op_type for node in model.graph] == ["RandomNormalLike", "Relu"]


def test_results_that_are_graph_outputs() -> None:
    model = check_rewrites(
        PASS,
        before="""main (float[2] x, bool c) => (float[2] a, float[2] b, float[2] d) {
            a, b, d = If (c) <
                then_branch = t () => (float[2] u, float[2] u2, float[2] u3) <float[2] u2 = {1, 2}> {
                    u = Identity (x) u3 = Exp (x) },
                else_branch = e () => (float[2] v, float[2] v2, float[2] v3) <float[2] v2 = {1, 2}> {
                    v = Identity (x) v3 = Abs (x) }
            >
        }""",
        ops={"If": 1},
        numbers=False,  # ONNX Runtime wants what a branch returns to be computed in it
    )
    assert [value.name for value in model.graph.outputs] == ["a", "b", "d"]
