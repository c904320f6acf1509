"""Integers that follow from known dimensions become constants; those of unknown dimensions stay computed."""

import onnx_ir as ir

from ortopt.testing import parse, run

PASS = "shape_folding"


def test_a_condition_may_be_longer_than_what_it_chooses_from() -> None:
    model = parse(
        "main (float[1,6] x, bool[6] c) => (int64[6] y) { s = Shape <start = 0, end = 1> (x) y = Where (c, s, s) }"
    )
    run("shape_folding", model)
    assert model.graph.outputs[0].shape == ir.Shape([6])
