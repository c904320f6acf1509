"""However an exporter spells a rotary position embedding, it becomes one node.

Unless said otherwise, x is [batch, length, 2 heads, 8 elements], and c and s hold the cosines and sines of 4 pairs.
"""

from pathlib import Path

import onnx_ir as ir
import pytest

from ortopt.testing import check_rewrites
from tests.passes import example_files

PASS = "rotary_embedding_fusion"
EXAMPLES = example_files.read_file(Path(__file__).with_name("rotary.txt"))
OWN = "com.microsoft::RotaryEmbedding"
CONSTANTS = {
    name: f"{kind} {name} = {content}"
    for name, kind, content in [
        ("zero", "int64[1]", "{0}"),
        ("one", "int64[1]", "{1}"),
        ("two", "int64[1]", "{2}"),
        ("three", "int64[1]", "{3}"),
        ("four", "int64[1]", "{4}"),
        ("last", "int64[1]", "{-1}"),
        ("endless", "int64[1]", "{9223372036854775807}"),
        ("first", "int64", "{0}"),
        ("second", "int64", "{1}"),
        ("third", "int64", "{2}"),
        ("sections", "int64[6]", "{1, 1, 2, 1, 1, 2}"),
        ("fours", "int64[2]", "{4, 4}"),
        ("twos", "int64[2]", "{2, 2}"),
        ("whole", "int64[4]", "{0, 0, 2, 8}"),
        ("turned", "int64[4]", "{0, 0, 2, 4}"),
        ("flat", "int64[4]", "{1, 0, 1, 8}"),
        ("pairs", "int64[5]", "{0, 0, 2, 4, 2}"),
        ("halves", "int64[5]", "{0, 0, 2, 2, 4}"),
        ("double", "int64[5]", "{1, 1, 1, 4, 2}"),
        ("twice", "int64[4]", "{1, 1, 1, 2}"),
        ("ones", "int64[2]", "{1, 1}"),
        ("swapped", "int64[8]", "{4, 5, 6, 7, 0, 1, 2, 3}"),
        ("neighbours", "int64[8]", "{1, 0, 3, 2, 5, 4, 7, 6}"),
        ("repeated", "int64[8]", "{0, 0, 1, 1, 2, 2, 3, 3}"),
        ("signs", "float[8]", "{-1, -1, -1, -1, 1, 1, 1, 1}"),
        ("crossed", "float[8]", "{-1, 1, -1, 1, -1, 1, -1, 1}"),
        ("half", "float", "{0.5}"),
    ]
}
ROWS = "float[B,S,2,8] x, float[1,S,1,4] c, float[1,S,1,4] s"
DOUBLED = "cc = Concat <axis = -1> (c, c) ss = Concat <axis = -1> (s, s)"
REPEATED = "cc = Gather <axis = -1> (c, repeated) ss = Gather <axis = -1> (s, repeated)"
SUM = "p = Mul (x, cc) q = Mul (t, ss) y = Add (p, q)"
HALVES = "a, b = Split <axis = -1> (x, fours)"
STRIDED = "a = Slice (x, zero, endless, last, two) b = Slice (x, one, endless, last, two)"
PRODUCTS = "ac = Mul (a, c) bs = Mul (b, s) bc = Mul (b, c) as = Mul (s, a) re = Sub (ac, bs) im = Add (as, bc)"
STACKED = "ru = Unsqueeze (re, four) iu = Unsqueeze (im, four) z = Concat <axis = 4> (ru, iu) y = Reshape (z, whole)"


def model(body: str, inputs: str = ROWS, outputs: str = "float[B,S,2,8] y") -> str:
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = ", ".join(constant for name, constant in CONSTANTS.items() if name in words)
    return f"main ({inputs}) => ({outputs}) <{used}> {{ {body} }}"


def attributes(result: ir.Model) -> dict[str, int]:
    (node,) = [node for node in result.graph if node.op_type == "RotaryEmbedding"]
    return {name: entry.as_int() for name, entry in node.attributes.items()}


@pytest.mark.parametrize(
    "turn",
    [
        "n = Neg (b) t = Concat <axis = -1> (n, a)",
        "r = Concat <axis = 3> (b, a) t = Mul (r, signs)",
        "r = Gather <axis = -1> (x, swapped) t = Mul (signs, r)",
        "d = Slice (x, four, endless, last) e = Slice (x, zero, four, last) n = Neg (d) t = Concat <axis = -1> (n, e)",
        "h = Reshape (x, halves) d, e = Split <axis = 3> (h, ones) n = Neg (e) g = Concat <axis = 3> (n, d) "
        "t = Reshape (g, whole)",
    ],
)
def test_halves_that_change_places(turn: str) -> None:
    text = model(f"{DOUBLED} {HALVES} {turn} {SUM}")
    result = check_rewrites(PASS, text, ops={OWN: 1, "Add": 0, "Mul": 0, "Concat": 0})
    assert attributes(result) == {"num_heads": 2}


# -- neighbours -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "turn",
    [
        f"{STRIDED} n = Neg (b) nu = Unsqueeze (n, four) au = Unsqueeze (a, four) z = Concat <axis = 4> (nu, au) "
        "t = Reshape (z, whole)",
        "r = Gather <axis = -1> (x, neighbours) t = Mul (r, crossed)",
    ],
)
@pytest.mark.parametrize(
    "tables",
    [
        REPEATED,
        "cu = Unsqueeze (c, four) d = Concat <axis = 4> (cu, cu) cc = Reshape (d, flat) "
        "su = Unsqueeze (s, four) e = Expand (su, double) ss = Reshape (e, flat)",
    ],
)
def test_neighbours(turn: str, tables: str) -> None:
    inputs = ROWS.replace("[1,S,1,4]", "[1,1,1,4]").replace("B,S", "B,1") if "double" in tables else ROWS
    text = model(f"{tables} {turn} {SUM}", inputs, inputs[: inputs.index(" x")] + " y")
    result = check_rewrites(PASS, text, ops={OWN: 1, "Mul": 0, "Add": 0})
    assert attributes(result) == {"num_heads": 2, "interleaved": 1}


@pytest.mark.parametrize(
    "apart",
    [
        STRIDED,
        "h = Reshape (x, pairs) a = Gather <axis = -1> (h, first) b = Gather <axis = 4> (h, second)",
        "h = Reshape (x, pairs) d, e = Split <axis = -1, num_outputs = 2> (h) a = Squeeze (d, four) "
        "b = Squeeze (e, last)",
    ],
)
def test_complex_products(apart: str) -> None:
    result = check_rewrites(PASS, model(f"{apart} {PRODUCTS} {STACKED}"), ops={OWN: 1, "Mul": 0}, opset=18)
    assert attributes(result) == {"num_heads": 2, "interleaved": 1}


def test_neighbours_that_become_halves() -> None:
    text = model(f"{STRIDED} {PRODUCTS} y = Concat <axis = -1> (re, im)")
    result = check_rewrites(PASS, text, ops={OWN: 1, "Transpose": 1, "Gather": 0, "Mul": 0})
    assert attributes(result) == {"num_heads": 2}


# -- elements that stay as they are -----------------------------------------------------------------------------------

PARTIAL = ROWS.replace("4] ", "2] ")
TURN_4 = "a, b = Split <axis = -1> (w, twos) n = Neg (b) t = Concat <axis = -1> (n, a) p = Mul (w, cc) q = Mul (t, ss)"


@pytest.mark.parametrize(
    "apart",
    ["w, r = Split <axis = -1> (x, fours)", "w = Slice (x, zero, four, last) r = Slice (x, four, endless, three)"],
)
def test_elements_behind_stay(apart: str) -> None:
    text = model(f"{DOUBLED} {apart} {TURN_4} m = Add (p, q) y = Concat <axis = 3> (m, r)", PARTIAL)
    result = check_rewrites(PASS, text, ops={OWN: 1, "Split": 0, "Slice": 0, "Concat": 0})
    assert attributes(result) == {"num_heads": 2, "rotary_embedding_dim": 4}


def test_neighbours_and_elements_behind_that_stay() -> None:
    turn = (
        "w, r = Split <axis = -1> (x, fours) a = Slice (w, zero, endless, last, two) "
        "b = Slice (w, one, endless, last, two) "
        f"{PRODUCTS} ru = Unsqueeze (re, four) iu = Unsqueeze (im, four) z = Concat <axis = 4> (ru, iu) "
        "m = Reshape (z, turned) y = Concat <axis = 3> (m, r)"
    )
    result = check_rewrites(PASS, model(turn, PARTIAL), ops={OWN: 1, "Concat": 0, "Mul": 0})
    assert attributes(result) == {"num_heads": 2, "interleaved": 1, "rotary_embedding_dim": 4}


def test_elements_in_front_stay() -> None:
    text = model(
        f"{DOUBLED} r, w = Split <axis = -1> (x, fours) {TURN_4} m = Add (p, q) y = Concat <axis = 3> (r, m)", PARTIAL
    )
    result = check_rewrites(PASS, text, ops={OWN: 1, "Concat": 1, "Mul": 0})
    assert attributes(result) == {"num_heads": 2}


def test_an_operand_and_tables_outside_of_a_branch() -> None:
    branch = f"main (bool k, {ROWS}) => (float[B,S,2,8] y) <int64[2] fours = {{4, 4}}> {{ {DOUBLED} {HALVES} "
    branch += "y = If (k) <then_branch = then () => (float[B,S,2,8] u) { n = Neg (b) t = Concat <axis = -1> (n, a) "
    branch += "p = Mul (x, cc) q = Mul (t, ss) u = Add (p, q) }, else_branch = other () => (float[B,S,2,8] v) "
    branch += "{ v = Identity (x) }> }"
    result = check_rewrites(PASS, branch)
    assert sum(node.op_type == "Mul" for node in result.graph.all_nodes()) == 0


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.title for example in EXAMPLES])
def test_examples(example: example_files.Example) -> None:
    example.check(PASS)
