"""ScatterNDs are put together only where they write all places of one axis, each once."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "scatter_concat_conversion"
ROWS = "int64[2,1] low = {0, 1}, int64[3,1] high = {2, 3, 4}"


def rows(constants: str = ROWS, nodes: str = "s = ScatterND (x, low, a) t = ScatterND (s, high, b)") -> str:
    return f"main (float[5,N] x, float[2,N] a, float[3,N] b) => (float[5,N] y) <{constants}> {{ {nodes} y = Neg (t) }}"


def after(joined: str) -> str:
    return f"main (float[5,N] x, float[2,N] a, float[3,N] b) => (float[5,N] y) {{ t = {joined} y = Neg (t) }}"


AXES = "int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[3] column = {-1, 1, 1}, int64[2] row = {-1, 1}"


def places(name: str, counted: str, *, before: str, first: str = "n") -> str:
    """A ScatterND of the tensor `name` into `before`, whose last axis is named by the constant `counted`."""
    return f"""{name}w = Shape ({name}) {name}n = Gather <axis = 0> ({name}w, zero)
        {name}m = Gather <axis = 0> ({name}w, one)
        {name}i = Range (zero, {name}{first}, one) {name}ir = Reshape ({name}i, column)
        {name}ie = Expand ({name}ir, {name}w) {name}iu = Unsqueeze ({name}ie, last)
        {name}j = Range (zero, {name}m, one) {name}jr = Reshape ({name}j, row) {name}je = Expand ({name}jr, {name}w)
        {name}ju = Unsqueeze ({name}je, last)
        {name}k = Expand ({counted}, {name}w) {name}ku = Unsqueeze ({name}k, last)
        {name}c = Concat <axis = -1> ({name}iu, {name}ju, {name}ku) {name}s = ScatterND ({before}, {name}c, {name})"""


def elements(low: str = "0, 1", high: str = "2, 3, 4", *, wide: str = "N,M", a: str = "N,M,2") -> str:
    counts = f"int64[2] low = {{{low}}}, int64[3] high = {{{high}}}"
    first, second = places("a", "low", before="x"), places("b", "high", before="as")
    return f"""main (float[{wide},5] x, float[{a}] a, float[N,M,3] b) => (float[{wide},5] y) <{AXES}, {counts}> {{
        {first} {second} y = Neg (bs) }}"""


def test_rows() -> None:
    check_rewrites(PASS, rows(), after("Concat <axis = 0> (a, b)"))


def test_the_first_rows_last() -> None:
    turned = rows(nodes="s = ScatterND (x, high, b) t = ScatterND (s, low, a)")
    check_rewrites(PASS, turned, after("Concat <axis = 0> (a, b)"))


def test_rows_counted_from_the_end() -> None:
    check_rewrites(PASS, rows(ROWS.replace("2, 3, 4", "-3, -2, -1")), after("Concat <axis = 0> (a, b)"))


def test_what_was_written_before_does_not_matter() -> None:
    earlier = "r = ScatterND (x, low, a) s = ScatterND (r, low, a) t = ScatterND (s, high, b)"
    check_rewrites(PASS, rows(nodes=earlier), after("Concat <axis = 0> (a, b)"))


def test_a_part_that_others_read() -> None:
    text = """main (float[5,N] x, float[2,N] a, float[3,N] b) => (float[5,N] s, float[5,N] t)
        <int64[2,1] low = {0, 1}, int64[3,1] high = {2, 3, 4}> {
        s = ScatterND (x, low, a) t = ScatterND (s, high, b) }"""
    check_rewrites(PASS, text, ops={"ScatterND": 1, "Concat": 1})


def test_elements() -> None:
    check_rewrites(PASS, elements(), ops={"ScatterND": 0, "Expand": 0, "Concat": 1})


def test_static_sizes() -> None:
    check_rewrites(PASS, elements().replace("N,M", "2,3"), ops={"ScatterND": 0, "Concat": 1})


KEPT = {
    "the updates are combined": rows(nodes='s = ScatterND (x, low, a) t = ScatterND <reduction = "add"> (s, high, b)'),
    "places stay as they are": rows(nodes="s = Neg (x) t = ScatterND (s, high, b)"),
    "the rows do not follow each other": rows(ROWS.replace("2, 3, 4", "2, 4, 3")),
    "a row whose end is beyond 64 bits": (
        "the rows do not follow each other",
        rows("int64[2,1] low = {0, 1}, int64[1,1] high = {9223372036854775807}").replace("float[3,N]", "float[1,N]"),
    ),
    "what is written is written over": rows(ROWS.replace("2, 3, 4", "1, 2, 3")),
    "the indices are not those of rows": """main (float[5,4] x, float[2] a) => (float[5,4] y)
        <int64[2,2] low = {0, 1, 0, 2}> { t = ScatterND (x, low, a) y = Neg (t) }""",
    "do not count from 0": elements(low="1, 0"),
    "not a part of one axis": elements().replace("float[N,M,5]", "float[N,K,5]"),
    "the places are not fixed": elements().replace("float[N,M,3] b", "float[N,M,L] b").replace("int64 one = {1}",
        "int64 one = {1}, int64 two = {2}").replace("bk = Expand (high, bw)", """bl = Gather <axis = 0> (bw, two)
        bq = Range (zero, bl, one) bk = Expand (bq, bw)"""),
    "another axis is assigned to before": f"""main (float[2,3,5] x, float[1,3,5] a, float[2,3,3] b) => (float[2,3,5] y)
        <{AXES}, int64[1,1] low = {{0}}, int64[3] high = {{2, 3, 4}}> {{
        s = ScatterND (x, low, a) {places("b", "high", before="s")} y = Neg (bs) }}""",
}  # fmt: skip


test_keeps = keeps(PASS, KEPT)


def chain(count: int) -> str:
    nodes = " ".join(f"s{at + 1} = ScatterND (s{at}, r{at}, a)" for at in range(count))
    constants = ", ".join(f"int64[1,1] r{at} = {{{at}}}" for at in range(count))
    of = f"main (float[{count},N] s0, float[1,N] a) => (float[{count},N] y)"
    return f"{of} <{constants}> {{ {nodes} y = Neg (s{count}) }}"


def test_many_assignments() -> None:
    check_rewrites(PASS, chain(16), ops={"ScatterND": 0, "Concat": 1})


def test_an_unrolled_loop() -> None:
    check_rewrites(PASS, chain(40), ops={"ScatterND": 0, "Concat": 1})


def test_a_part_of_an_unrolled_loop_is_left_to_its_end() -> None:
    text = chain(40).replace("s40 = ScatterND (s39, r39, a)", "s40 = ScatterND (s39, r38, a)")
    check_keeps(PASS, text, "what is written is assigned to further")
    check_keeps(PASS, text, "places stay as they are")


def grid(low: str, high: str, *, wide: str = "2,5,N", a: str = "2,2,N", b: str = "2,3,N") -> str:
    constants = f"int64[2,2,2] low = {{{low}}}, int64[2,3,2] high = {{{high}}}"
    return f"""main (float[{wide}] x, float[{a}] a, float[{b}] b) => (float[{wide}] y) <{constants}> {{
        s = ScatterND (x, low, a) t = ScatterND (s, high, b) y = Neg (t) }}"""


LOW, HIGH = "0, 0, 0, 1, 1, 0, 1, 1", "0, 2, 0, 3, 0, 4, 1, 2, 1, 3, 1, 4"


@pytest.mark.parametrize("high", [HIGH, "-2, 2, -2, -2, -2, 4, -1, 2, 1, 3, 1, -1"])
def test_rows_of_two_axes(high: str) -> None:
    """``y[:, :2] = a; y[:, 2:] = b``."""
    after = """main (float[2,5,N] x, float[2,2,N] a, float[2,3,N] b) => (float[2,5,N] y) {
        t = Concat <axis = 1> (a, b) y = Neg (t) }"""
    check_rewrites(PASS, grid(LOW, high), after)


def test_what_is_written_over_as_a_whole() -> None:
    both = rows(
        "int64[2,1] low = {0, 1}, int64[3,1] high = {2, 3, 4}, int64[3,1] mid = {1, 2, 3}",
        "r = ScatterND (x, mid, b) s = ScatterND (r, low, a) t = ScatterND (s, high, b)",
    )
    check_rewrites(PASS, both, after("Concat <axis = 0> (a, b)"))
    again = both.replace("s = ScatterND (r, low, a)", "q = ScatterND (r, high, b) s = ScatterND (q, low, a)")
    check_rewrites(PASS, again, after("Concat <axis = 0> (a, b)"))
    between = """main (float[5,N] x, float[4,N] a, float[3,N] b, float[1,N] c) => (float[5,N] y)
        <int64[4,1] most = {1, 2, 3, 4}, int64[3,1] mid = {2, 3, 4}, int64[1,1] first = {0}> {
        s = ScatterND (x, mid, b) t = ScatterND (s, most, a) u = ScatterND (t, first, c) y = Neg (u) }"""
    check_rewrites(PASS, between, ops={"ScatterND": 0, "Concat": 1})


GRIDS = {
    "the rows do not follow each other": grid(LOW, "0, 2, 0, 3, 0, 4, 1, 2, 1, 4, 1, 3"),
    "not a part of one axis": grid(LOW, HIGH, wide="3,5,N"),
    "another axis is assigned to before": """main (float[2,3] x, float[1,3] a, float[2,2] b) => (float[2,3] y)
        <int64[1,3,2] low = {0, 0, 0, 1, 0, 2}, int64[2,2,2] high = {0, 1, 0, 2, 1, 1, 1, 2}> {
        s = ScatterND (x, low, a) t = ScatterND (s, high, b) y = Neg (t) }""",
    "a batch that may be larger": ("the rows do not follow each other", grid(LOW, HIGH, wide="B,5,N")),
}


test_keeps_rows_of_two_axes = keeps(PASS, GRIDS)


def step(at: int) -> str:
    """``y[:, at] = a``, for a batch of any size."""
    return f"""k{at}e = Expand (k{at}, shape) k{at}u = Unsqueeze (k{at}e, last)
        i{at} = Concat <axis = -1> (places, k{at}u) s{at + 1} = ScatterND (s{at}, i{at}, a)"""


def steps(count: int, *, first: str = "zero") -> str:
    named = ", ".join(f"int64[1] k{at} = {{{at}}}" for at in range(count))
    constants = f"int64 zero = {{0}}, int64 one = {{1}}, int64[1] last = {{-1}}, int64[3] lines = {{-1, 1, 1}}, {named}"
    nodes = " ".join(step(at) for at in range(count))
    return f"""main (float[B,{count},N] s0, float[B,1,N] a) => (float[B,{count},N] y) <{constants}> {{
        shape = Shape <start = 0, end = 2> (a) w = Shape (a) n = Gather <axis = 0> (w, zero)
        r = Range ({first}, n, one) places = Reshape (r, lines) {nodes} y = Neg (s{count}) }}"""


def test_steps_of_a_loop_for_a_batch_of_any_size() -> None:
    check_rewrites(PASS, steps(3), ops={"ScatterND": 0, "Concat": 1, "Range": 0})


def test_steps_that_leave_out_a_part_of_the_batch() -> None:
    check_keeps(PASS, steps(3, first="one"), "no Unsqueeze comes before")


def test_places_that_are_not_there() -> None:
    text = steps(3).replace("int64[1] k2 = {2}", "int64[1] k2 = {3}")
    check_keeps(PASS, text, "places are written that are not there")
