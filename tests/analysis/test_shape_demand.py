"""For what is computed from dimensions alone: who needs it, and which dimensions are in the way."""

from pathlib import Path

import pytest

from ortopt import optimize, zoo
from ortopt.analysis.shape_demand import demands
from ortopt.reporting.report import as_dict, shape_arithmetic
from ortopt.testing import parse
from tests.texts import table


@pytest.mark.parametrize(("why", "text"), table(Path(__file__).parent / "cases" / "shape_demand.txt", "why"))
def test_why(why: str, text: str) -> None:
    level = 0 if "4*N" in why else 1  # a Flatten says it
    result = optimize(parse(text), level=level, target="onnx", verify=False)
    if level == 0:
        from ortopt.analysis import shapes

        shapes.infer_model(result.model)
    reasons = {found.why for found in demands(result.model)}
    assert reasons == {why}


def test_in_branches_and_functions() -> None:
    model = parse("""<ir_version: 10, opset_import: ["" : 17, "f" : 1]>
        main (float[N,1] x, float[B] y, bool c) => (float[?,?] z, float[?,?] w) {
            s = Shape (y)
            z = If (c) <
                then_branch = t () => (float[?,?] u) { u = Expand (x, s) },
                else_branch = e () => (float[?,?] v) {
                    q = Shape (x) k = Concat <axis = 0> (s, q) r = ConstantOfShape (k)
                    a = ReduceSum <keepdims = 0> (r) v = Add (x, a) }
            >
            w = f.F (x, y)
        }
        <domain: "f", opset_import: ["" : 17]> F (x, y) => (z) { s = Shape (y) z = Expand (x, s) }""")
    result = optimize(model, level=1, target="onnx", verify=False, keep_functions=True)
    found = [(one["op"], one["graph"].partition("/")[0], one["why"]) for one in shape_arithmetic(result)]
    assert ("Shape", "main", "Expand needs it: it enlarges its input to B") in found
    assert ("ReduceSum", "main", "Add computes with it") in found
    assert ("Shape", "function f.F", "Expand needs it: it enlarges its input to B") in found


@pytest.mark.parametrize(
    "name",
    ["bert_small__ts17", "deberta_v2__ts13", "distilbert__dyn18raw", "gpt2_past__dyn18raw", "t5_encoder__ts17"],
)
def test_what_is_left_of_a_transformer_is_needed(name: str) -> None:
    result = optimize(zoo.cached(name), level=1, target="onnx", verify=False)
    left = as_dict(result)["shape_arithmetic"]
    assert left
    for one in left:
        assert one["needed_by"] is not None
        assert ": " in one["why"], one  # it names dimensions
    assert "Shape" in {one["op"] for one in left}


def test_nothing_is_left() -> None:
    result = optimize(parse("main (float[N] x) => (float[N] y) { y = Relu (x) }"), level=1, verify=False)
    assert as_dict(result)["shape_arithmetic"] == []
