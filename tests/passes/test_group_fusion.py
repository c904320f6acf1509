"""Supported nodes become one function of the domain ortopt.group, and the numbers stay."""

import json

import onnx

from ortopt.graph.save import to_bytes
from ortopt.options import Options
from ortopt.partition.groups import groups_of
from ortopt.testing import check_keeps, check_rewrites, parse, run

PASS = "group_fusion"


def test_a_model_that_one_provider_runs_whole_is_one_group() -> None:
    model = check_rewrites(
        PASS,
        """main (float[N,4] x) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
            t = MatMul (x, w)
            y = Relu (t)
        }""",
    )
    (group,) = groups_of(model)
    assert group.provider == "CPUExecutionProvider"
    assert (group.name, [node.op_type for node in group.nodes]) == ("group_0", ["Constant", "MatMul", "Relu"])
    assert [value.name for value in group.inputs] == ["x"]
    assert [value.name for value in group.outputs] == ["y"]
    assert group.origin_count == 2
    assert model.ir_version >= 10
    onnx.checker.check_model(onnx.load_from_string(to_bytes(model)))


def test_types_and_metadata_are_in_the_file() -> None:
    model = check_rewrites(PASS, "main (float[N,4] x) => (float[N,4] y) { t = Abs (x) y = Relu (t) }")
    (function,) = onnx.load_from_string(to_bytes(model)).functions
    assert [info.name for info in function.value_info] == ["x", "t", "y"]
    said = {entry.key: entry.value for entry in function.metadata_props}
    assert said["ortopt.provider"] == "CPUExecutionProvider"
    assert said["ortopt.weights"] == "0"
    assert json.loads(said["ortopt.origin"])[-1] == 2


def test_a_second_run_leaves_groups_alone() -> None:
    model = parse("main (float[N] x) => (float[N] y) { y = Relu (x) }")
    assert run(PASS, model)[0]
    before = to_bytes(model)
    assert not run(PASS, model)[0]
    assert to_bytes(model) == before


def test_functions_are_not_grouped_inside() -> None:
    check_keeps(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "own" : 1, "other": 1]>
        main (float[N] x) => (float[N] y) { y = own.Twice (x) }
        <domain: "own", opset_import: ["" : 17, "other": 1]> Twice (a) => (b) { b = other.Unknown (a) }""",
        options=Options(keep_functions=True),
    )


def test_what_no_provider_runs_stays_outside() -> None:
    check_keeps(
        PASS,
        """<ir_version: 10, opset_import: ["" : 17, "other": 1]>
        main (float[N] x) => (float[N] y) { y = other.Thing (x) }""",
    )
