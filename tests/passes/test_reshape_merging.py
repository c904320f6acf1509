"""Two ops that rename axes become one, wherever that is proven."""

import numpy as np
import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "reshape_merging"


def model(source: str, result: str, body: str, **lists: tuple[int, ...]) -> str:
    constants = ", ".join(
        f"int64[{len(numbers)}] {name} = {{{', '.join(map(str, numbers))}}}" for name, numbers in lists.items()
    )
    return f"main (float[{source}] x) => (float[{result}] y) <{constants}> {{ {body} }}"


def test_reshapes_keep_the_last_target() -> None:
    check_rewrites(
        PASS,
        model("N,6", "A,B", "t = Reshape (x, a) y = Reshape (t, b)", a=(-1, 2, 3), b=(3, -1)),
        after=model("N,6", "A,B", "y = Reshape (x, b)", b=(3, -1)),
    )


def test_a_target_that_is_computed_but_never_copies() -> None:
    check_rewrites(
        PASS,
        """main (float[4,6] x, int64[2] b) => (float[A,B] y) <int64[3] a = {-1, 2, 3}> {
            t = Reshape (x, a) y = Reshape <allowzero = 1> (t, b) }""",
        after="main (float[4,6] x, int64[2] b) => (float[A,B] y) { y = Reshape <allowzero = 1> (x, b) }",
        inputs={"x": np.ones((4, 6), np.float32), "b": np.array([3, 8])},
    )


@pytest.mark.parametrize(
    ("source", "a", "b", "after"),
    [
        ("2,3,4", (6, 4), (0, 2, 2), (6, 2, 2)),  # 0 copies 6 and not 2
        ("N,3,4", (0, 12), (0, 2, 6), (0, 2, 6)),  # 0 copies N either way
        ("N,3,4", (0, -1), (0, 2, 6), (0, 2, 6)),
        ("N,2,3", (0, 6), (-1, 0), (0, 6)),  # 0 copies 6 and not 2
    ],
)
def test_a_target_that_copies(source: str, a: tuple[int, ...], b: tuple[int, ...], after: tuple[int, ...]) -> None:
    unknown = ",".join("ABCD"[: len(after)])
    check_rewrites(
        PASS,
        model(source, unknown, "t = Reshape (x, a) y = Reshape (t, b)", a=a, b=b),
        after=model(source, unknown, "y = Reshape (x, b)", b=after),
    )


@pytest.mark.parametrize(
    ("source", "body", "a", "b"),
    [
        ("N,M", "t = Unsqueeze (x, a) u = Squeeze (t, b)", (1,), (1,)),
        ("N,M", "t = Unsqueeze (x, a) u = Squeeze (t, b)", (0, 2), (-2, 0)),
        ("N,1,M", "t = Squeeze (x, a) u = Unsqueeze (t, b)", (1,), (-2,)),
        ("N,6", "t = Reshape (x, a) u = Reshape (t, b)", (0, 2, 3), (0, 6)),
    ],
)
def test_there_and_back(source: str, body: str, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check_rewrites(
        PASS,
        model(source, source, f"{body} y = Neg (u)", a=a, b=b),
        after=f"main (float[{source}] x) => (float[{source}] y) {{ y = Neg (x) }}",
    )


@pytest.mark.parametrize(
    ("op", "source", "result", "a", "b", "after"),
    [
        ("Unsqueeze", "N,M", "N,1,M,1", (1,), (3,), (1, 3)),
        ("Unsqueeze", "N,M", "1,1,N,M", (0,), (0,), (0, 1)),
        ("Unsqueeze", "N,M", "N,1,1,M", (-2,), (-2,), (1, 2)),
        ("Unsqueeze", "N,M", "1,N,1,M", (1,), (0,), (0, 2)),
        ("Squeeze", "N,1,M,1", "N,M", (1,), (-1,), (1, 3)),
        ("Squeeze", "1,1,N,M", "N,M", (0,), (0,), (0, 1)),
    ],
)
@pytest.mark.parametrize("opset", [11, 13])
def test_the_same_op_twice(
    op: str, source: str, result: str, a: tuple[int, ...], b: tuple[int, ...], after: tuple[int, ...], opset: int
) -> None:
    head = f"main (float[{source}] x) => (float[{result}] y)"
    if opset >= 13:
        before = model(source, result, f"t = {op} (x, a) y = {op} (t, b)", a=a, b=b)
        expected = model(source, result, f"y = {op} (x, c)", c=after)
    else:
        before = f"{head} {{ t = {op} <axes = {list(a)}> (x) y = {op} <axes = {list(b)}> (t) }}"
        expected = f"{head} {{ y = {op} <axes = {list(after)}> (x) }}"
    check_rewrites(PASS, before, after=expected, opset=opset)


def test_only_1_allows_a_zero() -> None:
    check_rewrites(
        PASS,
        """main (float[N,8,12] x) => (float[A,B,C] y) <int64[4] a = {0, 0, 2, 6}, int64[3] b = {0, 16, 6}> {
            t = Reshape <allowzero = -1> (x, a) y = Reshape <allowzero = 2> (t, b) }""",
        ops={"Reshape": 1},
    )


def test_unsqueezes_of_unknown_rank() -> None:
    check_rewrites(
        PASS,
        """main (float[2,3] x, int64[2] s) => (float[A,B,C,D] y) <int64[1] a = {0}, int64[1] b = {2}> {
            r = Reshape <allowzero = 1> (x, s) z = Neg (r) t = Unsqueeze (z, a) y = Unsqueeze (t, b) }""",
        ops={"Unsqueeze": 1},
        inputs={"x": np.ones((2, 3), np.float32), "s": np.array([3, 2])},
    )


@pytest.mark.parametrize(
    ("source", "result", "body", "lists", "after"),
    [
        ("N,2,3", "N,6,1", "t = Flatten (x) y = Unsqueeze (t, a)", {"a": (2,)}, "Reshape (x, c)"),
        ("N,M,3", "A,B", "t = Unsqueeze (x, a) y = Flatten <axis = 2> (t)", {"a": (0,)}, "Flatten <axis = 1> (x)"),
        ("N,M,1,1", "N,M", "t = Squeeze (x, a) y = Flatten (t)", {"a": (2,)}, "Reshape (x, c)"),
        ("2,1,3,1", "1,6", "t = Squeeze (x) y = Flatten <axis = 0> (t)", {}, "Reshape (x, c)"),
    ],
)
def test_different_ops(source: str, result: str, body: str, lists: dict[str, tuple[int, ...]], after: str) -> None:
    constants = {"c": {"N,2,3": (0, 6, 1), "N,M,1,1": (0, 0)}.get(source, (1, 6))} if "c)" in after else {}
    check_rewrites(
        PASS,
        model(source, result, body, **lists).replace("<>", ""),
        after=model(source, result, f"y = {after}", **constants).replace("<>", ""),
    )


def test_no_elements() -> None:
    check_rewrites(
        PASS,
        model("0,6", "0,2,3", "t = Unsqueeze (x, a) y = Reshape <allowzero = 1> (t, b)", a=(0,), b=(0, 2, 3)),
        ops={"Unsqueeze": 0},
    )
    check_rewrites(
        PASS,
        model("0", "0,1", "t = Reshape (x, a) y = Unsqueeze (t, b)", a=(0,), b=(1,)),
        after=model("0", "0,1", "y = Reshape <allowzero = 1> (x, c)", c=(0, 1)),
    )


def test_other_users_keep_the_first() -> None:
    check_rewrites(
        PASS,
        """main (float[N,6] x) => (float[A,B] y, float[C,D,E] t) <int64[3] a = {-1, 2, 3}, int64[2] b = {3, -1}> {
            t = Reshape (x, a) y = Reshape (t, b) }""",
        ops={"Reshape": 2},
    )


KEPT = [
    ("a dimension beside the one to infer may be 0",
     model("N,M,K", "A,B,C", "t = Flatten (x) y = Unsqueeze (t, a)", a=(2,))),
    ("several dimensions are neither", model("N,M,K,L", "A,B,C", "t = Flatten <axis = 2> (x) y = Unsqueeze (t, a)", a=(0,))),  # noqa: E501
    ("the shapes are not known",
     "main (float[N,6] x, int64[2] b) => (float[A,B] y) <int64[3] a = {-1, 2, 3}> { t = Reshape (x, a) y = Reshape (t, b) }"),  # noqa: E501
    ("the shapes are not known", model("N,M,1", "A,B", "t = Squeeze (x) y = Unsqueeze (t, a)", a=(0,))),
    ("keep its own name", model("N,M", "N,M", "t = Unsqueeze (x, a) y = Squeeze (t, a)", a=(0,))),
    ("no Flatten or", model("N,M", "N,M,1", "t = Neg (x) y = Unsqueeze (t, a)", a=(2,))),
]  # fmt: skip


test_keeps = keeps(PASS, KEPT)


@pytest.mark.parametrize("opset", [11, 17])
def test_squeeze_of_unsqueeze_and_the_other_way_round(opset: int) -> None:
    def op(name: str, source: str, axes: str, number: int) -> str:
        if opset < 13:
            return f"{name} <axes = [{axes}]> ({source})"
        return f"{name} ({source}, a{number})"

    constants = "" if opset < 13 else "<int64[3] a1 = {0, 2, 3}, int64[1] a2 = {3}, int64[2] a3 = {1, 2}>"
    check_rewrites(
        PASS,
        before=f"""main (float[N,M] x, float[N,1,1] z) => (float[1,N,1,M] y, float[N,1] w) {constants} {{
            u = {op("Unsqueeze", "x", "0, 2, 3", 1)} s = {op("Squeeze", "u", "3", 2)} y = Neg (s)
            v = {op("Squeeze", "z", "1, 2", 3)} t = {op("Unsqueeze", "v", "1", 4)} w = Neg (t) }}""".replace(
            "int64[2] a3", "int64[1] a4 = {1}, int64[2] a3"
        ),
        ops={"Squeeze": 1, "Unsqueeze": 1},
        opset=opset,
    )


@pytest.mark.parametrize(
    ("source", "perm", "target", "after"),
    [
        ("N,2,1,512", "0, 2, 1, 3", (0, 0, -1), (0, 1, 1024)),
        ("N,2,1,512", "0, 2, 1, 3", (0, 1024), (0, 1024)),
        ("1,N,4", "1, 0, 2", (0, 1, 2, 2), (-1, 1, 2, 2)),
        ("1,2,1,3", "2, 1, 3, 0", (3, 2), (3, 2)),
        ("1,1,5", "", (5,), (5,)),
    ],
)
def test_a_transpose_that_moves_ones(source: str, perm: str, target: tuple[int, ...], after: tuple[int, ...]) -> None:
    unknown = ",".join("ABCD"[: len(after)])
    attribute = f"<perm = [{perm}]>" if perm else ""
    check_rewrites(
        PASS,
        model(source, unknown, f"t = Transpose {attribute} (x) y = Reshape (t, b)", b=target),
        after=model(source, unknown, "y = Reshape (x, b)", b=after),
    )


@pytest.mark.parametrize(
    ("source", "perm"), [("2,3,1", "1, 0, 2"), ("N,M,1", "1, 0, 2"), ("N,1,M", "2, 1, 0"), ("?,2,3", "1, 0, 2")]
)
def test_a_transpose_that_moves_more(source: str, perm: str) -> None:
    text = model(source, "A", f"t = Transpose <perm = [{perm}]> (x) y = Reshape (t, b)", b=(-1,))
    check_keeps(PASS, text, because="a Transpose moves more than ones")


def test_a_transpose_of_ones_that_others_read_stays_for_them() -> None:
    check_rewrites(
        PASS,
        """main (float[N,2,1,4] x) => (float[N,A] y, float[N,1,2,4] z) <int64[2] b = {0, 8}> {
            t = Transpose <perm = [0, 2, 1, 3]> (x) y = Reshape (t, b) z = Neg (t) }""",
        ops={"Transpose": 1, "Reshape": 1},
    )
