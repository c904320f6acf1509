"""Names in graphs below nodes: those of the file, where scoping allows them; the interfaces that other ops ask for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

import ortopt
from ortopt.framework.workspace import Workspace
from ortopt.graph.edit import Conflict
from ortopt.options import Options
from ortopt.serialization import shadowed_names
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from tests.serialization import models
from tests.whole_models.unverified import LEVELS, check_levels, optimized, results

HIDDEN, WORDS = 4, 11
DECODER = ["input_ids", "position_ids", "attention_mask", "past_0"]
FEEDS = {
    "input_ids": np.array([[1, 2, 4]], np.int32),
    "max_length": np.array([8], np.int32),
    "min_length": np.array([1], np.int32),
}


def decoder() -> onnx.GraphProto:
    """A language model of one layer with the interface of GPT-2, which has no use for its mask."""
    info, rng = helper.make_tensor_value_info, np.random.default_rng(0)
    weights = {
        "words": rng.standard_normal((WORDS, HIDDEN)).astype(np.float32),
        "head": rng.standard_normal((HIDDEN, WORDS)).astype(np.float32),
        "one": np.array([1]),
        "ends": np.array([0, 2]),
    }
    nodes = [
        helper.make_node("Gather", ["words", "input_ids"], ["found"]),
        helper.make_node("Identity", ["found"], ["new"]),
        helper.make_node("Unsqueeze", ["new", "ends"], ["key"]),
        helper.make_node("Concat", ["key", "key"], ["both"], axis=0),
        helper.make_node("Concat", ["past_0", "both"], ["present_0"], axis=3),
        helper.make_node("ReduceMean", ["present_0"], ["mean"], axes=[0, 2, 3], keepdims=0),
        helper.make_node("Unsqueeze", ["mean", "one"], ["context"]),
        helper.make_node("Add", ["new", "context"], ["state"]),
        helper.make_node("MatMul", ["state", "head"], ["logits"]),
    ]
    inputs = [info(name, 6, ["batch", name]) for name in DECODER[:3]]
    past = [info(name, 1, [2, "batch", 1, name, HIDDEN]) for name in ("past_0", "present_0")]
    outputs = [info("logits", 1, ["batch", "length", WORDS]), past[1]]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    return helper.make_graph(nodes, "decoder", [*inputs, past[0]], outputs, initializers)


def search(op: str) -> onnx.ModelProto:
    """A model that generates text; values around the op are called as those that it asks its graph for."""
    info = helper.make_tensor_value_info
    attributes: dict[str, Any] = {"decoder": decoder(), "eos_token_id": 3, "pad_token_id": 3, "model_type": 0}
    numbers: dict[str, np.ndarray] = {}
    if op == "BeamSearch":
        numbers |= {"num_beams": np.array([2], np.int32), "num_return_sequences": np.array([1], np.int32)}
        numbers |= {"length_penalty": np.ones(1, np.float32)}
        attributes |= {"early_stopping": 0, "no_repeat_ngram_size": 0, "decoder_start_token_id": -1}
    if op == "Sampling":
        attributes |= {"top_p": 0.01, "temperature": 1.0}
    numbers["repetition_penalty"] = np.ones(1, np.float32)
    nodes = [
        helper.make_node("Abs", ["input_ids"], ["past_0"]),
        helper.make_node(
            op, ["past_0", "max_length", "min_length", *numbers], ["found"], domain="com.microsoft", **attributes
        ),
        helper.make_node("Identity", ["found"], ["sequences"]),
        helper.make_node("Shape", ["sequences"], ["words"]),
    ]
    rank = 3 if op == "BeamSearch" else 2
    graph = helper.make_graph(
        nodes,
        "main",
        [info("input_ids", 6, ["batch", "length"]), info("max_length", 6, [1]), info("min_length", 6, [1])],
        [info("sequences", 6, [f"s{axis}" for axis in range(rank)]), info("words", 7, [rank])],
        [numpy_helper.from_array(array, name) for name, array in numbers.items()],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


@pytest.mark.parametrize("op", ["BeamSearch", "GreedySearch", "Sampling"])
def test_ops_of_onnx_runtime_get_the_graphs_that_they_ask_for(op: str) -> None:
    for made in check_levels(search(op), FEEDS):
        graphs = [node for node in made.graph.node if node.op_type == op]
        graphs += [node for function in made.functions for node in function.node if node.op_type == op]
        (held,) = [attribute.g for node in graphs for attribute in node.attribute if attribute.name == "decoder"]
        assert [value.name for value in held.input] == DECODER
        assert [value.name for value in held.output] == ["logits", "present_0"]


def test_groups_stand_around_such_ops() -> None:
    made = optimized(search("GreedySearch"), 4)
    wanted = results(search("GreedySearch"), FEEDS)
    for got, want in zip(ortopt.InferenceSession(made).run(None, FEEDS), wanted, strict=True):
        assert np.asarray(got).tolist() == want.tolist()


FOREIGN = """
<ir_version: 8, opset_import: ["": 17, "{domain}": 1]>
main (float[2] x) => (float[2] y) {{
    a = Abs (x)
    b = Neg (a)
    c = {domain}.{op} <body = g (float[2] a, float[2] b, float[2] unused) => (float[2] c, float[2] spare)
        {{ d = Identity (a) c = Relu (d) spare = Exp (x) }}> (b)
    y = Identity (c)
}}"""


@pytest.mark.parametrize(
    ("domain", "op"), [("com.microsoft", "Anything"), ("far", "Loop"), ("far", "Scan"), ("far", "F")]
)
@pytest.mark.parametrize("level", LEVELS)
def test_unknown_ops_keep_the_interfaces_of_their_graphs(domain: str, op: str, level: int) -> None:
    made = optimized(onnx.parser.parse_model(FOREIGN.format(domain=domain, op=op)), level)
    (node,) = [node for node in made.graph.node if node.op_type == op]
    held = node.attribute[0].g
    assert [value.name for value in held.input] == ["a", "b", "unused"]
    assert [value.name for value in held.output] == ["c", "spare"]


def test_edits_of_such_interfaces_are_refused() -> None:
    model = load(onnx.parser.parse_model(FOREIGN.format(domain="far", op="Loop")))
    edit = Workspace(model, Options()).edit
    (held,) = [node.attributes["body"].as_graph() for node in model.graph if node.op_type == "Loop"]
    with pytest.raises(Conflict, match="Loop may ask for the inputs and outputs"):
        edit.set_graph_inputs(held, held.inputs[:2])
    with pytest.raises(Conflict, match="Loop may ask for the inputs and outputs"):
        edit.set_graph_outputs(held, held.outputs[:1])


def names_in(graph: onnx.GraphProto) -> set[str]:
    own = {value.name for value in (*graph.input, *graph.initializer)} | {
        out for node in graph.node for out in node.output
    }
    for node in graph.node:
        for attribute in node.attribute:
            own |= names_in(attribute.g)
    return own


LEGAL = {
    "branches that use the same names": """main (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] u) { t = Relu (x) u = Mul (t, x) },
            else_branch = b () => (float[2] u) { t = Neg (x) u = Exp (t) }> }""",
    "names that come later": """main (bool c, float[2] x) => (float[2] y) {
        z = If (c) <then_branch = a () => (float[2] u) { k = Relu (x) u = Mul (k, x) },
            else_branch = b () => (float[2] y) { u = Neg (x) y = Exp (u) }>
        u = Exp (z) k = Abs (u) y = Mul (k, u) }""",
    "inputs of a body that hide": """main (int64 n, bool c, float[2] x) => (float[2] y) {
        t = Neg (x)
        y = Loop (n, c, t) <body = b (int64 n, bool c, float[2] t) => (bool k, float[2] s)
            { k = Identity (c) f = Cast <to = 1> (n) s = Add (t, f) }> }""",
    "outputs of the node that holds them": """main (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] y) { y = Relu (x) },
            else_branch = b () => (float[2] y) { y = Neg (x) }> }""",
}


@pytest.mark.parametrize("why", LEGAL)
def test_names_stay_where_scoping_allows_them(why: str) -> None:
    model = models.text(LEGAL[why])
    feeds = {"c": np.array(True), "x": np.float32([-3, 4])} | ({"n": np.array(2)} if "int64 n" in LEGAL[why] else {})
    apart = names_in(onnx.load_from_string(to_bytes(load(model))).graph) != names_in(model.graph)
    assert apart is (why != "branches that use the same names")
    for level, made in enumerate(check_levels(model, feeds)):
        if not made.functions and level < 2:
            assert names_in(made.graph) <= names_in(model.graph), level
    assert names_in(optimized(model, 0).graph) == names_in(model.graph)


def test_a_name_that_is_taken_by_now_stays_new() -> None:
    model = load(models.text(LEGAL["names that come later"]))
    branch = model.graph[0].attributes["then_branch"].as_graph()
    inner, later = branch[0], model.graph[2]
    assert inner.outputs[0].name == "k_2"
    assert later.outputs[0].name == "k"
    branch[1].replace_input_with(1, later.outputs[0])
    model.graph.remove(later)
    model.graph.insert_before(model.graph[0], later)
    later.replace_input_with(0, model.graph.inputs[1])
    shadowed_names.restore(model)
    assert inner.outputs[0].name == "k_2"
    assert model.graph[2].outputs[0].name == "u"
    assert onnx.load_from_string(to_bytes(model))


def test_models_in_memory_keep_their_names_too() -> None:
    model = search("GreedySearch")
    made = ir.from_proto(model)
    (node,) = [node for node in load(made).graph if node.op_type == "GreedySearch"]
    assert [value.name for value in node.attributes["decoder"].as_graph().inputs] == DECODER
