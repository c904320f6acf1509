"""What a mask of an attention masks: later positions, padded keys, or something else."""

import onnx_ir as ir
import pytest

from ortopt.framework.workspace import Workspace
from ortopt.graph import symbolic
from ortopt.options import Options
from ortopt.patterns.attention.block import attention
from ortopt.patterns.attention.masking import Masking, masking
from ortopt.testing import parse
from tests.patterns.test_attention_spellings import model

BLOCK = """kt = Transpose <perm = [0, 1, 3, 2]> (kh) d = MatMul (qh, kt) {mask} p = Softmax <axis = -1> (z)
    c = MatMul (p, vh) y = Identity (c)"""
OPERANDS = "float[B,2,S,4] qh, float[B,2,T,4] kh, float[B,2,T,4] vh"
SQUARE = OPERANDS.replace("T", "S")


def found(mask: str, operands: str = SQUARE, more: str = "", inputs: str = "") -> Masking:
    """The masking of a block whose scores `d` become `z`."""
    text = model(BLOCK.format(mask=mask), operands + inputs, "float[B,2,S,4] y", more)
    result = Workspace(parse(text, 18), Options()).model
    root = next(node for node in result.graph if node.outputs[0].name == "c")
    return attention(root).masking


NUMBERS = """int64 n0 = {0}, int64 n1 = {1}, int64[1] first = {0}, int64[1] last = {1}, int64[3] row = {0, 1, 2},
    int64[3] column = {0, 1, 3}"""
RANGES = """s = Shape <start = 2, end = 3> (qh) t = Shape <start = 2, end = 3> (kh) ls = Squeeze (s) lt = Squeeze (t)
    past = Sub (lt, ls) queries = Range (n0, ls, n1) keys = Range (n0, lt, n1) """
COMPARED = "at = Add (queries, past) i = Unsqueeze (at, column) j = Unsqueeze (keys, row) "
FILL = " m = Where (b, zero, low) z = Add (d, m)"


@pytest.mark.parametrize("operands", [OPERANDS, SQUARE])
@pytest.mark.parametrize("comparison", ["LessOrEqual (j, i)", "GreaterOrEqual (i, j)"])
def test_positions_that_are_compared(comparison: str, operands: str) -> None:
    masking = found(f"{RANGES} {COMPARED} b = {comparison} {FILL}", operands, NUMBERS)
    assert masking.causal
    assert not masking.others


@pytest.mark.parametrize(
    "comparison",
    ["Less (j, i)", "LessOrEqual (i, j)", "Greater (i, j)", "GreaterOrEqual (j, i)"],
)
def test_comparisons_that_are_wrong_by_one_element(comparison: str) -> None:
    masking = found(f"{RANGES} {COMPARED} b = {comparison} {FILL}", OPERANDS, NUMBERS)
    assert not masking.causal
    assert masking.others


def test_positions_without_the_past() -> None:
    compared = COMPARED.replace("(queries, past)", "(queries, n0)")
    assert not found(f"{RANGES} {compared} b = LessOrEqual (j, i) {FILL}", OPERANDS, NUMBERS).causal
    assert found(f"{RANGES} {compared} b = LessOrEqual (j, i) {FILL}", SQUARE, NUMBERS).causal


def test_a_comparison_and_padding_and_a_window() -> None:
    mask = f"""{RANGES} {COMPARED} order = LessOrEqual (j, i) pad = Unsqueeze (keep, middle) both = And (order, pad)
        begin = Sub (i, n4) near = Greater (j, begin) b = And (both, near) {FILL}"""
    more = f"{NUMBERS}, int64[2] middle = {{1, 2}}, int64 n4 = {{4}}"
    masking = found(mask, OPERANDS, more, ", bool[B,T] keep")
    assert masking.causal
    assert [value.name for value in masking.padding] == ["pad"]
    assert [value.name for value in masking.others] == ["near"]


def test_scores_whose_place_a_number_takes() -> None:
    """Where a condition does not hold; that queries, keys and values come from one value is another question."""
    mask = f"{RANGES} {COMPARED} order = LessOrEqual (j, i) b = Not (order) m = Where (b, low, zero) z = Add (d, m)"
    assert found(mask, OPERANDS, NUMBERS).causal


STATIC = "float[B,2,3,4] qh, float[B,2,5,4] kh, float[B,2,5,4] vh"
LOWEST = "-3.4028234663852886e38"


def triangle(diagonal: int, hole: bool = False) -> str:
    rows = [["0" if key <= query + diagonal else LOWEST for key in range(5)] for query in range(3)]
    if hole:
        rows[1][0] = LOWEST
    return f"float[1,1,3,5] m = {{{', '.join(cell for row in rows for cell in row)}}}"


@pytest.mark.parametrize(
    ("diagonal", "hole", "causal"), [(2, False, True), (1, False, False), (3, False, False), (2, True, False)]
)
def test_a_constant(diagonal: int, hole: bool, causal: bool) -> None:
    mask = BLOCK.format(mask="z = Add (d, m)")
    text = model(mask, STATIC, "float[B,2,3,4] y", triangle(diagonal, hole))
    result = Workspace(parse(text, 18), Options()).model
    root = next(node for node in result.graph if node.outputs[0].name == "c")
    assert attention(root).causal is causal


@pytest.mark.parametrize(("begin", "causal"), [("past", True), ("zero_past", False)])
def test_a_slice_of_a_large_constant(begin: str, causal: bool) -> None:
    matrix = ", ".join("1" if key <= query else "0" for query in range(8) for key in range(8))
    mask = """s = Shape <start = 2, end = 3> (qh) t = Shape <start = 2, end = 3> (kh)
        past = Shape <start = 2, end = 3> (pk) zero_past = Sub (past, past) end = Add (BEGIN, s)
        rows = Slice (large, BEGIN, end, two_, one_) cells = Slice (rows, first, t, three_, one_)
        b = Cast <to = 9> (cells) """
    mask = mask.replace("BEGIN", begin) + FILL
    mask = mask.replace("z = Add (d, m)", "y = Identity (m)")
    operands = "float[B,2,S,4] qh, float[B,2,P,4] pk, float[B,2,S,4] kn"
    more = f"uint8[1,1,8,8] large = {{{matrix}}}, int64[1] first = {{0}}, int64[1] one_ = {{1}}"
    more += ", int64[1] two_ = {2}, int64[1] three_ = {3}"
    text = model(f"kh = Concat <axis = 2> (pk, kn) {mask}", operands, "float[1,1,S,T] y", more)
    result = Workspace(parse(text, 18), Options()).model
    added = next(node.outputs[0] for node in result.graph if node.op_type == "Where")
    length, past = symbolic.symbol("S"), symbolic.symbol("P")
    assert masking([added], [], length, symbolic.add(length, past)).causal is causal


@pytest.mark.parametrize(("upper", "k", "causal"), [(1, 1, True), (1, 0, False), (1, 2, False), (0, 1, False)])
def test_a_triangle_of_the_lowest_number(upper: int, k: int, causal: bool) -> None:
    mask = f"""s = Shape <start = 2, end = 3> (qh) both = Concat <axis = 0> (s, s) full = Expand (low, both)
        m = Trilu <upper = {upper}> (full, k) z = Add (d, m)"""
    assert found(mask, SQUARE, f"int64 k = {{{k}}}").causal is causal


def test_what_is_added_and_masks_nothing_is_something_else() -> None:
    masking = found("z = Add (d, m)", SQUARE, inputs=", float[1,2,S,S] m")
    assert not masking.causal
    assert len(masking.others) == 1
    assert isinstance(masking.others[0], ir.Value)
