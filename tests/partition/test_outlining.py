"""Nodes move into a function and back, to the byte; groups take and give no more than is needed."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from ortopt.analysis import shapes
from ortopt.errors import InvalidModelError
from ortopt.graph.edit import Editor
from ortopt.partition.groups import Group, groups_of
from ortopt.partition.outlining import Cluster, needs_tidying, outline, tidy
from ortopt.partition.partitioning import apply, group, partition, prepare
from ortopt.partition.settings import PartitionOptions, Policy
from ortopt.serialization.load import load
from ortopt.serialization.save import ExternalData, save, to_bytes
from ortopt.testing import parse
from ortopt.verification.verify import verify
from tests.partition.grouped_models import cut

MODELS = {
    "plain": """main (float[N,4] x, float[4,4] w) => (float[N,4] y) <float[4] c = {1,2,3,4}>
        { t = MatMul (x, w) u = Add (t, c) v = Neg (u) y = Relu (v) }""",
    "graph outputs between": """main (float[N,4] x) => (float[N,4] t, float[N,4] y)
        { t = Relu (x) y = Sqrt (t) }""",
    "a result used in a body": """main (float[2,2] x, bool go) => (float[2,2] y) {
        t = MatMul (x, x)
        y = If <then_branch = a () => (float[2,2] p) { p = Neg (t) },
                else_branch = b () => (float[2,2] p) { q = MatMul (t, x) p = Neg (q) }> (go) }""",
    "constants of every kind": """main (float[N,4] x) => (float[N,4] y) <float[4] c = {1,2,3,4}> {
        k = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> () t = Add (x, k) u = Mul (t, c) v = Neg (k) w = Sub (u, v)
        y = Relu (w) }""",
    "an output left out": """main (float[N,4] x) => (float[N,4] y) { y, m = Dropout (x) }""",
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_outlining_can_be_taken_back(name: str, policy: str) -> None:
    model = parse(MODELS[name])
    options = PartitionOptions(deny=("Neg",), policy=policy)  # type: ignore[arg-type]
    found = partition(model, options)
    before = to_bytes(model)
    edit = Editor(model, shapes.infer_node)
    calls = apply(edit, found[0], 0)
    assert len(calls) == len(found[0].clusters)
    edit.drop_freed_initializers()
    assert to_bytes(model) != before or not calls
    edit.rollback(0)
    assert to_bytes(model) == before
    assert [value.name for value in model.graph.initializers.values()] == [
        entry.name for entry in onnx.load_from_string(before).graph.initializer
    ]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_a_grouped_model_is_the_same_model(name: str, policy: str) -> None:
    model = parse(MODELS[name])
    cut(model, deny=("Neg",), policy=policy)
    onnx.checker.check_model(onnx.load_from_string(to_bytes(model)), full_check=True)


def test_old_ir_versions_rise_and_old_inputs_stay() -> None:
    proto = ir.to_proto(parse("main (float[N,4] x) => (float[N,4] y) { y = Relu (x) }"))
    proto.ir_version = 3
    model = load(proto)
    group(model)
    assert model.ir_version == 10
    newer = load(ir.to_proto(parse("main (float[N,4] x) => (float[N,4] y) { y = Relu (x) }")))
    newer.ir_version = 12
    group(newer)
    assert newer.ir_version == 12


def test_a_function_imports_what_it_uses_only() -> None:
    model = parse(
        "main (float[N,4] x) => (float[N,4] y) { t = com.microsoft.QuickGelu (x) u = Neg (t) y = Softmax (u) }"
    )
    first, second = group(model, PartitionOptions(deny=("Neg",), policy="literal"))
    assert first.function.opset_imports == {"": 17, "com.microsoft": 1}
    assert second.function.opset_imports == {"": 17}
    assert model.opset_imports["ortopt.group"] == 1


@pytest.mark.parametrize(
    ("op", "opset"), [("LayerNormalization", 13), ("LayerNormalization", 17), ("SimplifiedLayerNormalization", 17)]
)
def test_normalizations_of_onnxruntimes_own_say_their_stash_type(op: str, opset: int) -> None:
    """ONNX Runtime 1.31 ends the process when it loads a function with one that does not."""
    model = parse(f"main (float[N,4] x, float[4] s) => (float[N,4] y) {{ t = {op} (x, s) y = Relu (t) }}", opset)
    cut(model, in_process=False)


@pytest.mark.parametrize("opset", [9, 13, 17])
def test_mean_variance_normalization_says_its_axes(opset: int) -> None:
    """ONNX Runtime 1.31 does not load a function with one that does not."""
    model = parse(
        "main (float[1,2,3,3] x) => (float[1,2,3,3] y) { t = MeanVarianceNormalization (x) y = Relu (t) }", opset
    )
    (made,) = cut(model, in_process=False)
    normalization = next(node for node in made.function if node.op_type == "MeanVarianceNormalization")
    assert normalization.attributes["axes"].as_ints() == (0, 2, 3)


def group_with_spare_arguments() -> tuple[ir.Model, Editor, Group]:
    """A group of which one input and one output are needed no more, and that takes a value twice."""
    weight = ",".join(["1"] * 300)
    model = parse(
        f"""main (float[300] x, float[300] z) => (float[300] y, float[300] q) <float[300] w = {{{weight}}}> {{
        t = Add (x, w) u = Mul (t, z) y = Relu (u) q = Neg (z) }}"""
    )
    prepare(model)
    edit = Editor(model, shapes.infer_node)
    nodes = {node.outputs[0].name: node for node in model.graph}
    outline(edit, Cluster("CPUExecutionProvider", (nodes["t"], nodes["u"], nodes["y"])), "group_0")
    (found,) = groups_of(model)
    edit.restore_order()
    return model, edit, found


def test_tidying_drops_what_is_not_needed() -> None:
    model, edit, found = group_with_spare_arguments()
    assert not needs_tidying(found)
    before = to_bytes(model)
    start = edit.version
    mul = next(node for node in found.nodes if node.op_type == "Mul")
    edit.set_input(mul, 0, mul.inputs[1])  # the Add, x and the weight are needed no more
    edit.sweep([found.nodes[0]])
    assert needs_tidying(found)
    call = tidy(edit, found)
    edit.drop_freed_initializers()
    (tidied,) = groups_of(model)
    assert tidied.call is call
    assert [value.name for value in tidied.inputs] == ["z"]
    assert tidied.weights == 0
    assert not model.graph.initializers
    assert not needs_tidying(tidied)
    onnx.checker.check_model(onnx.load_from_string(to_bytes(model)))
    edit.rollback(start)
    assert to_bytes(model) == before


def test_tidying_drops_an_output_that_nobody_needs_any_more() -> None:
    model = parse("main (float[N] x) => (float[N] y, float[N] z) { y = Relu (x) z = Abs (y) }")
    prepare(model)
    edit = Editor(model, shapes.infer_node)
    relu, absolute = model.graph
    outline(edit, Cluster("CPUExecutionProvider", (relu, absolute)), "group_0")
    (found,) = groups_of(model)
    edit.set_output(model.graph, 0, model.graph.inputs[0])
    assert needs_tidying(found)
    tidy(edit, found)
    (tidied,) = groups_of(model)
    assert [value.name for value in tidied.outputs] == ["z"]
    assert not needs_tidying(tidied)


def test_tidying_takes_a_value_once() -> None:
    model, edit, found = group_with_spare_arguments()
    edit.set_input(found.call, 0, found.call.inputs[1])
    (found,) = groups_of(model)
    assert needs_tidying(found)
    tidy(edit, found)
    (tidied,) = groups_of(model)
    assert [value.name for value in tidied.inputs] == ["z"]
    assert tidied.weights == 1


BROKEN = {
    "does not say its ortopt.provider": lambda said: said.pop("ortopt.provider"),
    "does not say its ortopt.weights": lambda said: said.pop("ortopt.weights"),
    "cannot be read: invalid literal": lambda said: said.update({"ortopt.weights": "many"}),
    "1 inputs, 2 of them weights": lambda said: said.update({"ortopt.weights": "2"}),
    "1 inputs, -1 of them weights": lambda said: said.update({"ortopt.weights": "-1"}),
    "metadata that cannot be read": lambda said: said.update({"ortopt.origin": "["}),
    "cannot be read: ": lambda said: said.update({"ortopt.origin": json.dumps(["a", "b"])}),
    "guard that is no object": lambda said: said.update({"ortopt.guard": "[1]"}),
}


@pytest.mark.parametrize("because", BROKEN)
def test_a_group_that_is_not_as_the_format_says_is_refused(because: str) -> None:
    model = parse("main (float[N] x) => (float[N] y) { y = Relu (x) }")
    (found,) = group(model)
    BROKEN[because](found.function.metadata_props)  # type: ignore[no-untyped-call]
    with pytest.raises(InvalidModelError, match=because):
        groups_of(model)


def test_calls_and_functions_belong_together() -> None:
    text = """<ir_version: 10, opset_import: ["" : 17, "ortopt.group" : 1]>
        main (float[N] x) => (float[N] y) {{ {body} }}
        <domain: "ortopt.group", opset_import: ["" : 17]> group_0 (a) => (b) {{ b = Relu (a) }}"""
    for body, because in (
        ("y = Relu (x)", "nothing calls the group 'group_0'"),
        ("t = ortopt.group.group_0 (x) y = ortopt.group.group_0 (t)", "called twice"),
        ("y = ortopt.group.group_0 (x, x)", "has 1 inputs, and its call 2"),
        ("y = ortopt.group.group_9 (x)", "no function for the group 'group_9'"),
    ):
        model = ir.from_onnx_text(text.format(body=body))
        for function in model.functions.values():
            function.metadata_props.update({"ortopt.provider": "CPUExecutionProvider", "ortopt.weights": "0"})
        with pytest.raises(InvalidModelError, match=because):
            groups_of(model)


KINDS = {
    "strings": "main (string[N] x) => (string[N] y) { y = Identity (x) }",
    "a sequence": "main (seq(float[N]) x) => (float[N] y) <int64 i = {0}> { y = SequenceAt (x, i) }",
    "an optional": "main (optional(float[N]) x) => (bool y) { y = OptionalHasElement (x) }",
    "nothing in it": "main (float[0,3] x) => (float[0,3] y) { y = Relu (x) }",
    "views only": "main (float[N,3] x) => (float[M] y) <int64[1] s = {-1}> { y = Reshape (x, s) }",
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_onnxruntime_can_load_is_grouped_whole(kind: str) -> None:
    model = parse(KINDS[kind], 18)
    assert len(cut(model)) == 1
    onnx.checker.check_model(onnx.load_from_string(to_bytes(model)))


def test_calls_of_functions_that_are_kept_are_in_groups() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 17, "own" : 1]>
        main (float[N,2] x) => (float[N,2] y) { t = own.F (x) u = Relu (t) y = own.G (u) }
        <domain: "own", opset_import: ["" : 17, "own" : 1]> F (a) => (b) { c = own.G (a) b = Exp (c) }
        <domain: "own", opset_import: ["" : 17]> G (a) => (b) { b = Sqrt (a) }"""
    )
    original = load(model)
    (found,) = group(model)
    assert [node.op_type for node in found.nodes] == ["F", "Relu", "G"]
    before = to_bytes(model)
    prepare(model)
    assert to_bytes(model) == before
    assert verify(original, load(before), in_process=True).status == "verified"
    assert group(parse(UNKNOWN_INSIDE), PartitionOptions(policy="literal")) == []


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_a_call_of_a_function_that_takes_an_optional_is_in_no_group(policy: Policy) -> None:
    """ONNX Runtime does not load what hands one on; a function that gives one, or takes a sequence, is no matter."""
    model = parse(
        """<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        main (float[N] x, float[N] z, bool go) => (float[N] y, float[N] r) <optional(float[N]) o> {
            o = own.Give (x, ) t = own.Take (o) s = Neg (t) y = Relu (s)
            r = If <then_branch = a () => (float[N] p) { p = own.Take (o) },
                    else_branch = b () => (float[N] p) { q = SequenceConstruct (x, z) p = own.First (q) }> (go) }
        <domain: "own", opset_import: ["" : 18]> Give (a, c) => (b) { b = Optional (a) }
        <domain: "own", opset_import: ["" : 18]> Take (a) => (b) { b = OptionalGetElement (a) }
        <domain: "own", opset_import: ["" : 18]> First (a) => (b) {
            i = Constant <value_int = 0> () b = SequenceAt (a, i) }
        """
    )
    inside = [node.op_type for found in cut(model, policy=policy) for node in found.nodes]
    assert "Take" not in inside
    if policy == "literal":
        assert {"Give", "First"} <= set(inside)


@pytest.mark.parametrize("policy", ["cost", "literal"])
def test_what_nobody_needs_becomes_no_group(policy: Policy) -> None:
    """A call that takes and gives nothing is no node that ONNX Runtime loads."""
    model = parse(
        """main (float[2,2] x, bool go) => (float[2,2] y) <float[2,2] w = {1,2,3,4}> {
            a = MatMul (w, w) b = RandomNormal <shape = [2,2]> () c = RandomNormal <shape = [2,2]> ()
            n = Neg (x) d = MatMul (n, x)
            y = If <then_branch = t () => (float[2,2] p) { q = MatMul (w, w) p = Neg (x) },
                    else_branch = e () => (float[2,2] o) { r = MatMul (x, x) o = Neg (r) }> (go) }"""
    )
    found = cut(model, deny=("Neg",), policy=policy)
    assert [[node.op_type for node in one.nodes] for one in found] == [["MatMul"]]


UNKNOWN_INSIDE = """<ir_version: 10, opset_import: ["" : 17, "own" : 1, "other" : 1]>
    main (float[N,2] x) => (float[N,2] y) { y = own.F (x) }
    <domain: "own", opset_import: ["" : 17, "other" : 1]> F (a) => (b) { c = other.Thing (a) b = Exp (c) }"""
"""A function that no provider runs, because of one node of its body."""


def test_a_group_that_nobody_needs_goes() -> None:
    model = parse("main (float[N] x) => (float[N] y, float[N] z) { y = Relu (x) z = Abs (x) }")
    prepare(model)
    edit = Editor(model, shapes.infer_node)
    first = next(iter(model.graph))
    outline(edit, Cluster("CPUExecutionProvider", (first,)), "group_0")
    (found,) = groups_of(model)
    before = to_bytes(model)
    start = edit.version
    edit.set_output(model.graph, 0, list(model.graph)[-1].outputs[0])
    assert tidy(edit, found) is None
    assert groups_of(model) == []
    assert not model.functions
    edit.rollback(start)
    assert to_bytes(model) == before


def test_a_split_with_a_part_that_nobody_needs_leaves_nothing_behind() -> None:
    model = parse(
        """main (float[N,6] x, float[1] b) => (float[N,3] y) {
        t = Exp (x) s = Mul (t, b) p, q = Split <axis = 1> (s) y = Relu (p) }""",
        13,
    )
    cut(model, deny=("Split", "Exp"), policy="literal")
    for value in (*model.graph.inputs, *(value for node in model.graph for value in node.outputs)):
        assert all(use.node.graph is not None for use in value.uses())


@pytest.mark.parametrize("external", ["copy", "inline"])
def test_a_weight_of_two_groups_is_in_the_file_once(tmp_path: Path, external: ExternalData) -> None:
    declared = ",".join(["1"] * 4096)
    model = parse(
        f"""main (int64[N] x) => (float[N,4] y) <float[1024,4] w = {{{declared}}}> {{
        a = Gather (w, x) b = Neg (a) c = Gather (w, x) y = Add (b, c) }}"""
    )
    original = load(model)
    groups = group(model, PartitionOptions(deny=("Neg",), policy="literal"))
    assert [[value.name for value in found.weight_inputs] for found in groups] == [["w"], ["w"]]
    written = save(model, tmp_path / "grouped.onnx", external_data=external)
    assert 1 << 14 < written.nbytes == sum(path.stat().st_size for path in tmp_path.iterdir()) < 3 << 13
    assert verify(original, load(written.path), in_process=True).status == "verified"
