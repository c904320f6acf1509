"""ScatterNDs are put together only where they write all places of one axis, each once."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

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


@pytest.mark.parametrize("because", KEPT)
def test_keeps(because: str) -> None:
    check_keeps(PASS, KEPT[because], because)


def chain(count: int) -> str:
    nodes = " ".join(f"s{at + 1} = ScatterND (s{at}, r{at}, a)" for at in range(count))
    constants = ", ".join(f"int64[1,1] r{at} = {{{at}}}" for at in range(count))
    of = f"main (float[{count},N] s0, float[1,N] a) => (float[{count},N] y)"
    return f"{of} <{constants}> {{ {nodes} y = Neg (s{count}) }}"


def test_many_assignments() -> None:
    check_rewrites(PASS, chain(16), ops={"ScatterND": 0, "Concat": 1})
    check_keeps(PASS, chain(17), "there are many assignments")
