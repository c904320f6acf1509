"""Dropout goes at inference, whatever says that it is inference, and stays wherever it may train."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "dropout_elimination"
TRAINS = "it is in training mode"


@pytest.mark.parametrize(
    ("opset", "dropout"),
    [
        (7, "Dropout <ratio = 0.7> (a)"),
        (10, "Dropout <ratio = 0.7> (a)"),
        (12, "Dropout (a)"),
        (12, "Dropout (a, r)"),
        (13, "Dropout (a, r, never)"),
        (13, "Dropout <seed = 3> (a, , never)"),
        (22, "Dropout (a, r, never)"),
    ],
)
def test_goes(opset: int, dropout: str) -> None:
    ratio = "r = Constant <value_float = 0.5> ()" if " r" in dropout else ""
    never = "never = Constant <value = bool {0}> ()" if "never" in dropout else ""
    check_rewrites(
        PASS,
        before=f"main (float[N,4] x) => (float[N,4] y) {{ {ratio} {never} a = Relu (x) b = {dropout} y = Neg (b) }}",
        after="main (float[N,4] x) => (float[N,4] y) { a = Relu (x) y = Neg (a) }",
        opset=opset,
    )


@pytest.mark.parametrize("opset", [1, 6])
def test_the_attribute_of_old_opsets(opset: int) -> None:
    check_rewrites(
        PASS,
        before="main (float[N] x) => (float[N] y) { a = Abs (x) b = Dropout <is_test = 1> (a) y = Neg (b) }",
        after="a = Abs (x) y = Neg (a)",
        opset=opset,
        numbers=False,
    )
    for off in ("", "<is_test = 0>"):
        check_keeps(
            PASS, f"main (float[N] x) => (float[N] y) {{ b = Dropout {off} (x) y = Neg (b) }}", TRAINS, opset=opset
        )


def test_a_constant_node_says_it() -> None:
    check_rewrites(
        PASS,
        before="""main (float16[N] x) => (float16[N] y) {
            never = Constant <value = bool {0}> () a = Neg (x) b = Dropout (a, , never) y = Neg (b) }""",
        after="a = Neg (x) y = Neg (a)",
    )


@pytest.mark.parametrize("shape", ["2,3", "0,3", ""])
def test_a_used_mask_is_all_true(shape: str) -> None:
    check_rewrites(
        PASS,
        before=f"""main (float[{shape}] x) => (float[{shape}] y, bool[{shape}] m) {{
            a = Relu (x) b, k = Dropout (a) y = Neg (b) m = Not (k) }}""".replace("[]", ""),
        ops={"Dropout": 0, "Neg": 1, "Not": 1},
    )


def test_a_mask_that_is_an_output() -> None:
    model = check_rewrites(
        PASS,
        before="main (float[2,3] x) => (float[2,3] y, bool[2,3] m) { a = Relu (x) y, m = Dropout (a) }",
        ops={"Dropout": 0, "Relu": 1},
    )
    assert [value.name for value in model.graph.outputs] == ["y", "m"]


KEPT = [
    (TRAINS, 13, "(float[2] x) => (float[2] y) <bool on = {1}> { a = Dropout (x, , on) y = Neg (a) }"),
    ("it is not a constant", 13, "(float[2] x, bool on) => (float[2] y) { a = Dropout (x, , on) y = Neg (a) }"),
    (
        "it is not a constant",
        13,
        "(float[2] x, bool on) => (float[2] y) <bool on = {0}> { a = Dropout (x, , on) y = Neg (a) }",
    ),
    (
        "a dimension is not fixed",
        13,
        "(float[N] x) => (float[N] y, bool[N] m) { a = Neg (x) y, k = Dropout (a) m = Not (k) }",
    ),
    (
        "before opset 12 runtimes disagree about the mask",
        11,
        "(float[2] x) => (float[2] y, bool[2] m) { a = Neg (x) y, k = Dropout (a) m = Not (k) }",
    ),
    ("a graph output must keep its own name", 13, "(float[2] x) => (float[2] y) { y = Dropout (x) }"),
]


@pytest.mark.parametrize(("because", "opset", "model"), KEPT)
def test_keeps(because: str, opset: int, model: str) -> None:
    check_keeps(PASS, f"main {model}", because, opset=opset)


def test_a_function_whose_caller_decides_keeps_it() -> None:
    check_keeps(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
            main (float[N] x, bool on) => (float[N] y) { y = f.Drop (x, on) }
            <domain: "f", opset_import: ["" : 17]>
            Drop (a, on) => (c) { b = Dropout (a, , on) c = Neg (b) }""",
        "it is not a constant",
    )
