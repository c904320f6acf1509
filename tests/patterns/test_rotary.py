"""However an exporter spells a rotary position embedding, it becomes one node.

Unless said otherwise, x is [batch, length, 2 heads, 8 elements], and c and s hold the cosines and sines of 4 pairs.
"""

import onnx_ir as ir
import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "rotary_embedding_fusion"
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


@pytest.mark.parametrize(
    "ending",
    [
        "n = Neg (s) ss = Concat <axis = -1> (n, s) r = Concat <axis = -1> (b, a) p = Mul (x, cc) q = Mul (r, ss) "
        "y = Add (p, q)",
        "ss = Concat <axis = -1> (s, s) n = Neg (a) r = Concat <axis = -1> (b, n) p = Mul (x, cc) q = Mul (r, ss) "
        "y = Sub (p, q)",
        "bs = Mul (b, s) as = Mul (a, s) n = Neg (bs) r = Concat <axis = -1> (n, as) p = Mul (x, cc) y = Add (p, r)",
    ],
)
def test_negations_elsewhere(ending: str) -> None:
    text = model(f"cc = Concat <axis = -1> (c, c) {HALVES} {ending}")
    check_rewrites(PASS, text, ops={OWN: 1, "Add": 0, "Mul": 0, "Neg": 0})


def test_the_other_direction_has_negative_sines() -> None:
    turn = "n = Neg (a) t = Concat <axis = -1> (b, n)"
    check_rewrites(PASS, model(f"{DOUBLED} {HALVES} {turn} {SUM}"), ops={OWN: 1, "Neg": 1, "Mul": 0})


def test_halves_put_together_at_the_end() -> None:
    text = model(f"{HALVES} {PRODUCTS} y = Concat <axis = -1> (re, im)")
    check_rewrites(PASS, text, ops={OWN: 1, "Split": 0, "Mul": 0})


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


def test_complex_products_that_stay_in_pairs() -> None:
    body = f"{STRIDED} {PRODUCTS} {STACKED}".replace(" y = Reshape (z, whole)", " y = Identity (z)")
    text = model(body, outputs="float[B,S,2,4,2] y")
    check_rewrites(PASS, text, ops={OWN: 1, "Mul": 0, "Reshape": 2})


def test_complex_tables() -> None:
    body = "c = Gather <axis = -1> (f, first) s = Gather <axis = -1> (f, second)"
    text = model(f"{body} {STRIDED} {PRODUCTS} {STACKED}", "float[B,S,2,8] x, float[1,S,1,4,2] f")
    check_rewrites(PASS, text, ops={OWN: 1, "Mul": 0, "Slice": 2})


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


def test_elements_in_front_stay_and_neighbours_become_halves() -> None:
    turn = (
        "r, w = Split <axis = -1> (x, fours) a = Slice (w, zero, endless, last, two) "
        "b = Slice (w, one, endless, last, two) "
        f"{PRODUCTS} y = Concat <axis = 3> (r, re, im)"
    )
    check_rewrites(PASS, model(turn, PARTIAL), ops={OWN: 1, "Concat": 1, "Mul": 0})


def test_other_elements_behind() -> None:
    text = model(
        f"{DOUBLED} w, r = Split <axis = -1> (x, fours) {TURN_4} m = Add (p, q) "
        "o = Neg (r) y = Concat <axis = 3> (m, o)",
        PARTIAL,
    )
    check_rewrites(PASS, text, ops={OWN: 1, "Split": 1, "Neg": 1, "Concat": 1})


# -- what is turned ---------------------------------------------------------------------------------------------------


def test_a_part_of_a_packed_projection() -> None:
    text = model(
        f"{DOUBLED} w, r = Split <axis = -1> (x, fours) {TURN_4} m = Add (p, q) y = Concat <axis = 3> (m, m)", PARTIAL
    )
    check_rewrites(PASS, text, ops={OWN: 1, "Mul": 0})


def test_an_operand_that_is_a_sum_of_products() -> None:
    body = (
        f"k = Mul (o, half) l = Mul (o, o) x = Add (k, l) {DOUBLED} {HALVES} n = Neg (b) t = Concat <axis = -1> (n, a)"
    )
    text = model(f"{body} {SUM}", ROWS.replace("8] x", "8] o"))
    check_rewrites(PASS, text, ops={OWN: 1, "Mul": 2, "Add": 1})


# -- layouts ----------------------------------------------------------------------------------------------------------

TURN = f"{DOUBLED} {HALVES} n = Neg (b) t = Concat <axis = -1> (n, a) {SUM}"


@pytest.mark.parametrize(
    ("x", "table", "own"),
    [
        ("B,S,2,8", "1,S,1,4", True),
        ("B,S,2,8", "S,1,4", True),
        ("B,2,S,8", "1,1,S,4", True),
        ("B,2,S,8", "S,4", True),
        ("B,S,2,8", "B,S,1,4", False),
        ("B,2,S,8", "B,1,S,4", False),
        ("S,2,8", "S,1,4", True),
        ("B,S,8", "S,4", True),
        ("B,S,8", "B,S,4", False),
        ("B,S,3,2,8", "1,S,1,1,4", True),
        ("S,3,2,8", "S,1,1,4", True),
        ("B,1,2,8", "4", True),
        ("B,2,1,8", "1,1,1,4", True),
        ("B,2,1,8", "B,1,1,4", True),
        ("1,S,2,8", "1,S,1,4", True),
    ],
)
def test_layouts(x: str, table: str, own: bool) -> None:
    text = model(TURN, f"float[{x}] x, float[{table}] c, float[{table}] s", f"float[{x}] y")
    check_rewrites(PASS, text, ops={OWN if own else "RotaryEmbedding": 1, "Mul": 0, "Transpose": 0}, opset=23)


@pytest.mark.parametrize(
    ("x", "table", "reason"),
    [
        ("B,S,N,8", "1,S,1,4", "the number of heads is not known"),
        ("S,B,2,8", "S,1,1,4", "the number of heads is not known"),
        ("B,S,2,8", "1,S,2,4", "the tables vary along other dimensions than batch and positions"),
        ("B,S,2,8", "1,T,1,4", "a table is not known to have the batch size and length of the heads"),
        ("2,B,S,2,8", "1,1,S,1,4", "the tables vary along other dimensions than batch and positions"),
        ("8", "4", "there are no positions"),
        ("B,8", "B,4", "the heads have too many dimensions, or too few"),
    ],
)
def test_layouts_that_no_op_has(x: str, table: str, reason: str) -> None:
    text = model(
        TURN,
        f"float[{x}] x, float[{table}] c, float[{table}] s",
        "float[a,b,c,d] y" if "T" in table else f"float[{x}] y",
    )
    check_keeps(PASS, text, reason, opset=23)


def test_a_table_that_may_have_one_position_is_none_for_all() -> None:
    """A cut of a cache has as many rows as there are positions, or one that may serve them all."""
    body = "l = Shape <start = 1, end = 2> (x) c = Slice (ct, zero, l, zero) s = Slice (st, zero, l, zero)"
    text = model(f"{body} {TURN}", "float[B,S,8] x, float[1,4] ct, float[1,4] st", "float[B,S,8] y")
    check_keeps(PASS, text, "a table is not known to have", opset=18)


def test_a_table_cut_from_a_cache() -> None:
    body = "l = Shape <start = 1, end = 2> (x) c = Slice (ct, zero, l, zero) s = Slice (st, zero, l, zero)"
    text = model(f"{body} {TURN}", "float[B,S,8] x, float[9,4] ct, float[9,4] st", "float[B,S,8] y")
    check_rewrites(PASS, text, ops={OWN: 1, "Mul": 0}, opset=18)


# -- tables -----------------------------------------------------------------------------------------------------------

F = "float[B,S,2,8] x, float[1,S,1,4] f"


@pytest.mark.parametrize(
    ("tables", "ops"),
    [
        ("d = Concat <axis = -1> (f, f) cc = Cos (d) ss = Sin (d)", {"Cos": 1, "Sin": 1, "Concat": 0}),
        ("g = Cos (f) h = Sin (f) cc = Concat <axis = -1> (g, g) ss = Concat <axis = -1> (h, h)", {"Concat": 0}),
        ("d = Tile (f, twice) cc = Cos (d) ss = Sin (d)", {"Tile": 0, "Slice": 0}),
        ("d = Concat <axis = -1> (f, f) g = Cos (d) h = Sin (d) cc = Mul (g, half) ss = Mul (half, h)", {"Mul": 2}),
        (
            "h = Neg (f) d = Concat <axis = -1> (h, f) cc = Cos (d) e = Sin (f) ss = Concat <axis = -1> (e, e)",
            {"Neg": 1},
        ),
    ],
)
def test_tables_are_computed_for_one_half_only(tables: str, ops: dict[str, int]) -> None:
    body = f"{tables} {HALVES} n = Neg (b) t = Concat <axis = -1> (n, a) {SUM}"
    check_rewrites(PASS, model(body, F), ops={OWN: 1, "Split": 0, **ops})


def test_tables_of_which_half_is_taken() -> None:
    body = "d = Concat <axis = -1> (f, f) cc = Cos (d) ss = Sin (d) "
    body += "c, k = Split <axis = -1> (cc, fours) s, l = Split <axis = -1> (ss, fours)"
    text = model(f"{body} {HALVES} {PRODUCTS} y = Concat <axis = -1> (re, im)", F)
    check_rewrites(PASS, text, ops={OWN: 1, "Concat": 0, "Split": 0})


def test_tables_put_together_from_several_kinds_of_positions() -> None:
    """As models of images and text have them: time, height and width turn elements of their own."""
    tables = "d = Concat <axis = -1> (f, f) c3 = Cos (d) s3 = Sin (d) "
    for name in ("c", "s"):
        parts = [f"{name}{part}" for part in "uvwxyz"]
        tables += f"{', '.join(parts)} = Split <axis = -1> ({name}3, sections) "
        tables += "".join(
            f"{part}g = Gather <axis = 0> ({part}, {('first', 'second', 'third')[number % 3]}) "
            for number, part in enumerate(parts)
        )
        tables += f"{name}j = Concat <axis = -1> ({', '.join(f'{part}g' for part in parts)}) "
        tables += f"{name}{name} = Unsqueeze ({name}j, two) "
    body = f"{tables} {HALVES} n = Neg (b) t = Concat <axis = -1> (n, a) {SUM}"
    text = model(body, "float[B,S,2,8] x, float[3,B,S,4] f")
    check_rewrites(PASS, text, ops={"RotaryEmbedding": 1, "Neg": 0, "Mul": 0}, opset=23)


def test_tables_given_in_full_may_differ_in_their_halves() -> None:
    body = f"{HALVES} n = Neg (b) t = Concat <axis = -1> (n, a) {SUM}"
    text = model(body, "float[B,S,2,8] x, float[1,S,1,8] cc, float[1,S,1,8] ss")
    check_keeps(PASS, text, "the halves of a table are not known to be alike")


def test_tables_in_single_precision_for_heads_in_half() -> None:
    body = "d = Concat <axis = -1> (f, f) g = Cos (d) h = Sin (d) cc = Cast <to = 10> (g) ss = Cast <to = 10> (h)"
    body += f" {HALVES} n = Neg (b) t = Concat <axis = -1> (n, a) {SUM}"
    text = model(body, F.replace("float[B", "float16[B"), "float16[B,S,2,8] y")
    check_rewrites(PASS, text, ops={OWN: 1, "Cast": 2, "Concat": 0})


@pytest.mark.parametrize("same", [True, False])
def test_constant_tables(same: bool) -> None:
    table = "0.5, 1, 2, 3, 0.5, 1, 2, " + ("3" if same else "4")
    constants = (
        f"cc = Constant <value = float[1,1,1,8] {{{table}}}> () ss = Constant <value = float[1,1,1,8] {{{table}}}> ()"
    )
    text = model(
        f"{constants} {HALVES} n = Neg (b) t = Concat <axis = -1> (n, a) {SUM}", "float[B,1,2,8] x", "float[B,1,2,8] y"
    )
    if same:
        check_rewrites(PASS, text, ops={OWN: 1, "Split": 0})
    else:
        check_keeps(PASS, text, "the halves of a table are not known to be alike")


def test_constant_sines_with_their_signs() -> None:
    constants = """cc = Constant <value = float[1,1,1,8] {1, 2, 3, 4, 1, 2, 3, 4}> ()
        ss = Constant <value = float[1,1,1,8] {-1, 2, 3, -4, 1, -2, -3, 4}> ()"""
    text = model(
        f"{constants} r = Gather <axis = -1> (x, swapped) t = Identity (r) {SUM}",
        "float[B,1,2,8] x",
        "float[B,1,2,8] y",
    )
    check_rewrites(PASS, text, ops={OWN: 1, "Mul": 0})


def test_values_that_are_needed_elsewhere() -> None:
    text = model(f"{TURN} u = Relu (t)", outputs="float[B,S,2,8] y, float[B,S,2,8] u")
    check_rewrites(PASS, text, ops={OWN: 1, "Mul": 0, "Concat": 1})
    text = model(f"{TURN} u = Relu (p)", outputs="float[B,S,2,8] y, float[B,S,2,8] u")
    check_keeps(PASS, text, "used elsewhere")


@pytest.mark.parametrize("body", [DOUBLED + " y = Add (x, cc)", "p = Mul (x, x) q = Mul (x, x) y = Add (p, q)"])
def test_other_sums(body: str) -> None:
    check_keeps(PASS, model(body))


def test_positions_that_change_places() -> None:
    turn = "a, b = Split <axis = 1> (x, twos) n = Neg (b) t = Concat <axis = 1> (n, a)"
    text = model(f"{DOUBLED} {turn} {SUM}", ROWS.replace("S", "4"), "float[B,4,2,8] y")
    check_keeps(PASS, text, "the elements are not those of one value")


def test_elements_in_an_order_that_no_pairs_have() -> None:
    orders = """o = Constant <value = int64[8] {0, 2, 1, 3, 4, 6, 5, 7}> () x = Gather <axis = -1> (w, o)
        o2 = Constant <value = int64[8] {4, 6, 5, 7, 0, 2, 1, 3}> () r = Gather <axis = -1> (w, o2)"""
    text = model(f"{DOUBLED} {orders} t = Mul (r, signs) {SUM}", ROWS.replace(" x", " w"))
    check_rewrites(PASS, text, ops={OWN: 1, "Mul": 0, "Gather": 1})


def test_elements_in_such_an_order_nowhere() -> None:
    turn = """o = Constant <value = int64[4] {0, 2, 1, 3}> () o2 = Constant <value = int64[4] {4, 6, 5, 7}> ()
        a = Gather <axis = -1> (x, o) b = Gather <axis = -1> (x, o2)"""
    text = model(f"{turn} {PRODUCTS} y = Concat <axis = -1> (re, im)")
    check_keeps(PASS, text, "the elements change places")


def test_an_operand_and_tables_outside_of_a_branch() -> None:
    branch = f"main (bool k, {ROWS}) => (float[B,S,2,8] y) <int64[2] fours = {{4, 4}}> {{ {DOUBLED} {HALVES} "
    branch += "y = If (k) <then_branch = then () => (float[B,S,2,8] u) { n = Neg (b) t = Concat <axis = -1> (n, a) "
    branch += "p = Mul (x, cc) q = Mul (t, ss) u = Add (p, q) }, else_branch = other () => (float[B,S,2,8] v) "
    branch += "{ v = Identity (x) }> }"
    result = check_rewrites(PASS, branch)
    assert sum(node.op_type == "Mul" for node in result.graph.all_nodes()) == 0


def test_tables_of_integers_and_booleans() -> None:
    """The sign of what is no floating-point number is no sign of what is computed from it."""
    body = "h = Neg (f) d = Concat <axis = -1> (f, h) k = Cast <to = 9> (d) cc = Cast <to = 1> (k)"
    body += f" ss = Concat <axis = -1> (f, f) {HALVES} n = Neg (b) t = Concat <axis = -1> (n, a) {SUM}"
    check_keeps(PASS, model(body, F), "the halves of a table are not known to be alike")


def test_older_operands_broadcast_by_attributes() -> None:
    text = "main (float[2,3,8] x, float[2,3,8] c, float[2,3,8] t) => (float[2,3,8] y)"
    text += " { p = Mul <broadcast = 1> (x, c) q = Mul (t, c) y = Add (p, q) }"
    check_keeps(PASS, text, "operands broadcast by attributes", opset=6)


def test_parts_of_a_table_that_is_smaller_than_they_are() -> None:
    """Such a model does not run; it is left as it is, and nothing fails."""
    text = model(TURN.replace("Split <axis = -1> (x, fours)", "Split <axis = -1> (s, fours)"))
    check_keeps(PASS, text, "the elements are not those of one value")
