"""Elements of sequences are taken from where they come from."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "sequence_elimination"
HEAD = "main (float[2,6,3] x) => (float[A,B,C] y)"


@pytest.mark.parametrize(
    ("split", "position", "start", "end"),
    [
        ("SplitToSequence <axis = 1> (x, sizes)", 0, 0, 1),
        ("SplitToSequence <axis = -2> (x, sizes)", 1, 1, 3),
        ("SplitToSequence <axis = 1> (x, sizes)", -1, 3, 6),
        ("SplitToSequence <axis = 1, keepdims = 0> (x, sizes)", 2, 3, 6),
        ("SplitToSequence <axis = 1> (x, size)", 0, 0, 4),
        ("SplitToSequence <axis = 1> (x, size)", 1, 4, 6),
        ("SplitToSequence <axis = 1> (x, size)", -2, 0, 4),
        ("SplitToSequence <axis = 1> (x)", 3, 3, 4),
        ("SplitToSequence <axis = 1> (x)", -1, 5, 6),
    ],
)
def test_a_part_is_a_slice(split: str, position: int, start: int, end: int) -> None:
    sizes = "int64[3] sizes = {1, 2, 3}, " if "sizes" in split else "int64 size = {4}, " if "size)" in split else ""
    check_rewrites(
        PASS,
        f"{HEAD} <{sizes}int64 i = {{{position}}}> {{ parts = {split} y = SequenceAt (parts, i) }}",
        after=f"{HEAD} <int64[1] s = {{{start}}}, int64[1] e = {{{end}}}, int64[1] a = {{1}}>"
        " { y = Slice (x, s, e, a) }",
    )


def test_a_part_without_its_axis_is_a_gather() -> None:
    check_rewrites(
        PASS,
        "main (float[2,6,3] x) => (float[A,B] y) <int64 i = {-2}>"
        " { parts = SplitToSequence <axis = 1, keepdims = 0> (x) y = SequenceAt (parts, i) }",
        after="main (float[2,6,3] x) => (float[A,B] y) <int64 i = {4}> { y = Gather <axis = 1> (x, i) }",
    )


def test_several_parts_leave_no_sequence() -> None:
    check_rewrites(
        PASS,
        f"""{HEAD} <int64[2] sizes = {{3, 3}}, int64 one = {{0}}, int64 two = {{1}}>
        {{
            parts = SplitToSequence <axis = 1> (x, sizes)
            a = SequenceAt (parts, one)
            b = SequenceAt (parts, two)
            y = Add (a, b)
        }}""",
        ops={"SplitToSequence": 0, "SequenceAt": 0, "Slice": 2},
    )


@pytest.mark.parametrize(("position", "element"), [(0, "x"), (1, "z"), (-1, "z")])
def test_an_element_of_a_list(position: int, element: str) -> None:
    head = "main (float[2,6,3] x, float[4] z) => (float[N] y)"
    body = "{ s = SequenceConstruct (x, z) e = SequenceAt (s, i) f = Shape (e) y = Cast <to = 1> (f) }"
    check_rewrites(
        PASS,
        f"{head} <int64 i = {{{position}}}> {body}",
        after=f"{head} {{ f = Shape ({element}) y = Cast <to = 1> (f) }}",
    )


def test_a_list_that_is_joined() -> None:
    head = "main (float[2,6,3] x, float[2,1,3] z) => (float[A,B,C] y)"
    check_rewrites(
        PASS,
        f"{head} {{ s = SequenceConstruct (x, z, x) y = ConcatFromSequence <axis = -2> (s) }}",
        after=f"{head} {{ y = Concat <axis = 1> (x, z, x) }}",
    )


@pytest.mark.parametrize(
    ("body", "because"),
    [
        ("<int64 i = {3}> { p = SplitToSequence <axis = 1> (x, sizes) y = SequenceAt (p, i) }", "no such part"),
        ("<int64 i = {7}> { p = SplitToSequence <axis = 1> (x) y = SequenceAt (p, i) }", "the dimension is not fixed"),
        ("<int64 i = {0}> { p = SplitToSequence <axis = 1, keepdims = 0> (x, size) y = SequenceAt (p, i) }",
         "parts of size 1 may lose their axis"),
        ("{ p = SplitToSequence <axis = 1> (x, sizes) y = SequenceAt (p, k) }", "the position is not known"),
        ("<int64 i = {0}> { p = SplitToSequence <axis = 1> (x, k) y = SequenceAt (p, i) }", "the sizes are not known"),
        ("<int64 i = {2}> { s = SequenceConstruct (x, x) y = SequenceAt (s, i) }", "there is no such element"),
        ("{ s = SequenceConstruct (x, x) y = ConcatFromSequence <axis = 0, new_axis = 1> (s) }", "are stacked"),
        ("{ p = SplitToSequence <axis = 1> (x) y = ConcatFromSequence <axis = 0> (p) }", "are joined in another order"),
        ("<int64 i = {0}> { e = SequenceEmpty () s = SequenceInsert (e, x) y = SequenceAt (s, i) }", None),
    ],
)  # fmt: skip
def test_it_stays(body: str, because: str | None) -> None:
    constants = [("int64[3] sizes = {1, 2, 3}", "sizes"), ("int64 size = {1}", "size)")]
    header = ", ".join(text for text, name in constants if name in body)
    if header:
        body = body.replace("<", f"<{header}, ", 1) if body.startswith("<") else f"<{header}> {body}"
    check_keeps(PASS, f"main (float[2,6,3] x, int64 k) => (float y) {body}", because)


def test_a_dimension_that_is_not_fixed() -> None:
    body = "<int64 i = {0}, int64 size = {2}> { p = SplitToSequence <axis = 1> (x, size) y = SequenceAt (p, i) }"
    check_keeps(PASS, f"main (float[2,N,3] x) => (float[A,B,C] y) {body}", "the dimension is not fixed")
