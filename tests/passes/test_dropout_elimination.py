"""Dropout goes at inference, whatever says that it is inference, and stays wherever it may train."""

from ortopt.testing import check_rewrites

PASS = "dropout_elimination"


def test_a_mask_that_is_an_output() -> None:
    model = check_rewrites(
        PASS,
        before="main (float[2,3] x) => (float[2,3] y, bool[2,3] m) { a = Relu (x) y, m = Dropout (a) }",
        ops={"Dropout": 0, "Relu": 1},
    )
    assert [value.name for value in model.graph.outputs] == ["y", "m"]
