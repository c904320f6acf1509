"""ScatterNDs are put together only where they write all places of one axis, each once."""

from ortopt.testing import check_keeps, check_rewrites

PASS = "scatter_concat_conversion"


def chain(count: int) -> str:
    nodes = " ".join(f"s{at + 1} = ScatterND (s{at}, r{at}, a)" for at in range(count))
    constants = ", ".join(f"int64[1,1] r{at} = {{{at}}}" for at in range(count))
    of = f"main (float[{count},N] s0, float[1,N] a) => (float[{count},N] y)"
    return f"{of} <{constants}> {{ {nodes} y = Neg (s{count}) }}"


def test_an_unrolled_loop() -> None:
    check_rewrites(PASS, chain(40), ops={"ScatterND": 0, "Concat": 1})


def test_a_part_of_an_unrolled_loop_is_left_to_its_end() -> None:
    text = chain(40).replace("s40 = ScatterND (s39, r39, a)", "s40 = ScatterND (s39, r38, a)")
    check_keeps(PASS, text, "what is written is assigned to further")
    check_keeps(PASS, text, "places stay as they are")
