"""Sizes that are provably the same are computed once; sizes that may differ are not mixed up."""

from ortopt.testing import check_keeps, check_rewrites

PASS = "shape_sharing"
TARGETS = """
    main (float[N,{0}] x, float[{1},6] z) => (float[a,b] y, float[c,d] w) <int64[1] two = {{2}}, int64[1] m = {{-1}}> {{
        s = Shape <end = 1> (x)
        p = Mul (s, two)
        t = Concat <axis = 0> (p, m)
        y = Reshape (x, t)
        r = Shape <end = 1> (z)
        q = Add (r, r)
        u = Concat <axis = 0> (q, m)
        w = Reshape (z, u)
    }}"""


def test_shares_what_is_computed_in_different_ways() -> None:
    check_rewrites(PASS, TARGETS.format("4", "N"), ops={"Concat": 1, "Shape": 1, "Add": 0})


def test_other_symbols_stay() -> None:
    check_keeps(PASS, TARGETS.format("4", "M"))


def test_unknown_dimensions_are_never_equal() -> None:
    check_keeps(
        PASS,
        """main (float[4] x) => (int64[1] y) {
            a = NonZero (x) b = Neg (x) c = NonZero (b)
            s = Shape <start = 1> (a) t = Shape <start = 1> (c) y = Sub (s, t)
        }""",
    )


def test_types_and_ranks_must_agree() -> None:
    check_keeps(
        PASS,
        """main (float[N,4] x) => (int64 y, int32[1] z) {
            s = Shape <end = 1> (x)
            c = Cast <to = 6> (s)
            z = Neg (c)
            q = Squeeze (s)
            y = Neg (q)
        }""",
    )


def test_graph_outputs_keep_their_names() -> None:
    check_keeps(
        PASS,
        "main (float[N,4] x, float[N,5] z) => (int64[1] y, int64[1] w) {"
        " y = Shape <end = 1> (x) w = Shape <end = 1> (z) }",
        "w is a graph output",
    )


def test_outer_sizes_serve_inner_graphs_and_never_the_reverse() -> None:
    check_rewrites(
        PASS,
        """main (float[N,4] x, float[N,4] z, bool c) => (float[a,b] y) <int64[1] m = {-1}> {
            s = Shape <end = 1> (x)
            t = Concat <axis = 0> (s, m)
            v = Reshape (x, t)
            k = If (c) <
                then_branch = n () => (float[d,e] p) {
                    r = Shape <end = 1> (z) u = Concat <axis = 0> (r, m) p = Reshape (z, u)
                },
                else_branch = o () => (float[f,g] q) {
                    h = Shape <end = 1> (z) i = Concat <axis = 0> (m, h) q = Reshape (z, i)
                }>
            l = Shape <end = 1> (z)
            j = Concat <axis = 0> (m, l)
            w = Reshape (k, j)
            y = Sub (v, w)
        }""",
        ops={"Concat": 3, "Shape": 1},
    )


def test_the_result_of_an_if_does_not_serve_the_graphs_inside_of_it() -> None:
    check_keeps(
        PASS,
        """main (float[B,L] x, bool c) => (float[] z) <int64[1] one = {1}> {
            s = Shape (x)
            a = If (c) <
                then_branch = then_branch () => (int64[1] d) { d = Gather (s, one) },
                else_branch = else_branch () => (int64[1] f) { e = Gather (s, one) f = Identity (e) }
            >
            z = ConstantOfShape (a)
        }""",
    )
