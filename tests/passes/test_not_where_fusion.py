"""A Where after a Not chooses the other way round."""

from ortopt.testing import check_keeps, check_rewrites

PASS = "not_where_fusion"


def test_fuses() -> None:
    check_rewrites(
        PASS,
        before="main (bool[N] c, float[N] a, float b) => (float[N] y) { n = Not (c) y = Where (n, a, b) }",
        after="y = Where (c, b, a)",
    )


def test_the_not_stays_where_it_is_a_value_too() -> None:
    check_rewrites(
        PASS,
        before="main (bool[N] c, bool[N] b) => (bool[N] y) { n = Not (c) y = Where (n, n, b) }",
        after="n = Not (c) y = Where (c, b, n)",
        numbers=False,  # there is no Where of booleans on the CPU
    )


def test_several_wheres_and_an_output() -> None:
    check_rewrites(
        PASS,
        before="""main (bool[N] c, float[N] a, float[N] b) => (float[N] y, float[N] z, bool[N] n) {
            n = Not (c) y = Where (n, a, b) z = Where (n, b, a) }""",
        after="n = Not (c) y = Where (c, b, a) z = Where (c, a, b)",
    )


def test_keeps() -> None:
    check_keeps(
        PASS, "main (bool[N] c, bool[N] b) => (bool[N] y) { n = Not (c) y = Where (c, n, b) }", "no Not comes before"
    )
