"""ScatterNDs are put together only where they write all places of one axis, each once."""

from ortopt.testing import check_keeps, check_rewrites

PASS = "scatter_concat_conversion"


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


def test_elements() -> None:
    check_rewrites(PASS, elements(), ops={"ScatterND": 0, "Expand": 0, "Concat": 1})


def test_static_sizes() -> None:
    check_rewrites(PASS, elements().replace("N,M", "2,3"), ops={"ScatterND": 0, "Concat": 1})


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
