"""A Slice goes only if it takes all of every axis, forwards and without gaps."""

from ortopt.testing import check_rewrites

PASS = "slice_elimination"


def test_what_an_output_declares_of_itself_stays() -> None:
    """The input of the Slice is an output without a shape: it does not get that of the Slice's result."""
    model = check_rewrites(
        PASS,
        """main (float[N,4] x) => (float[] v, float[A,4] y) <int64[1] s = {0}, int64[1] e = {9}, int64[1] a = {1}> {
            v = Exp (x) t = Slice (v, s, e, a) y = Neg (t) }""",
        ops={"Slice": 0},
        numbers=False,
    )
    assert model.graph.outputs[0].shape is None or len(model.graph.outputs[0].shape) == 0
