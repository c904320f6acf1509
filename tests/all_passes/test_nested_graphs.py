"""Every pass does in branches, loop bodies and functions what it does in the main graph.

The examples are all those that the tests of each pass rewrite. Each is put into the branches of an If, the body of a
Loop and of a Scan, with all that it reads captured from outside, and into a local function: the first examples of a
pass into each, the others in turn. No more may be left of it than of the example by itself; the numbers stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from ortopt import registry
from ortopt.api import figures
from ortopt.options import Numerics, TransformerLevel
from ortopt.serialization.load import load
from ortopt.testing import all_fusions, run
from ortopt.verification.inputs import draw_inputs
from ortopt.verification.verify import verify
from tests.all_passes.pass_examples import WHOLE_RUNS, examples, has_tests

PASSES = [kind.name for kind in registry.installed() if kind.name]
COMPARED = {kind.name for kind in registry.installed() if TransformerLevel.LEVEL1 in kind.levels}
"""Those whose numbers are compared too: what they write is standard ONNX, which ONNX Runtime runs in any graph."""

MAX_EVERYWHERE = 2
"""Number of a pass's examples that are put into each kind of graph."""

INSIDE = "inside_"


def can_be_wrapped(model: ModelProto) -> bool:
    """Whether a model is one graph, as it would stand in another: nothing may be overridden, outputs are computed."""
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    made = {output for node in graph.node for output in node.output}
    outputs = [value.name for value in graph.output]
    return (
        not model.functions
        and model.ir_version >= 4
        and not graph.sparse_initializer
        and not graph.quantization_annotation
        and not constants & {value.name for value in graph.input}
        and len(set(outputs)) == len(outputs)
        and set(outputs) <= made
    )


def renamed(graph: GraphProto, mapping: dict[str, str]) -> GraphProto:
    """A copy with other names for what its nodes make; those below it are their own, but for what they capture."""
    copy = GraphProto()
    copy.CopyFrom(graph)
    pending = [copy]
    while pending:
        at = pending.pop()
        for node in at.node:
            node.input[:] = [mapping.get(value, value) for value in node.input]
            node.output[:] = [mapping.get(value, value) for value in node.output]
            pending.extend(attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH)
        for value in (*at.input, *at.output, *at.value_info):
            value.name = mapping.get(value.name, value.name)
        for tensor in at.initializer:
            tensor.name = mapping.get(tensor.name, tensor.name)
    return copy


def inner_names(graph: GraphProto, prefix: str) -> dict[str, str]:
    names: dict[str, str] = {}
    pending = [graph]
    while pending:
        at = pending.pop()
        for node in at.node:
            names |= {value: prefix + value for value in node.output if value}
            pending.extend(attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH)
        if at is not graph:
            names |= {value.name: prefix + value.name for value in at.input}
            names |= {tensor.name: prefix + tensor.name for tensor in at.initializer}
    return names


def body_of(graph: GraphProto, prefix: str = INSIDE, *, captures: bool = True) -> GraphProto:
    """A graph to stand below a node: it captures the inputs, and the constants or brings them."""
    body = renamed(graph, inner_names(graph, prefix))
    del body.input[:]
    if captures:
        del body.initializer[:]
    else:
        for tensor in body.initializer:
            tensor.name = prefix + tensor.name
        names = {tensor.name.removeprefix(prefix): tensor.name for tensor in body.initializer}
        for value in body.value_info:
            value.name = names.get(value.name, value.name)
        pending = [body]
        while pending:
            for node in pending.pop().node:
                node.input[:] = [names.get(value, value) for value in node.input]
                pending.extend(attribute.g for attribute in node.attribute if attribute.type == AttributeProto.GRAPH)
    return body


def whole(
    model: ModelProto, nodes: list[NodeProto], *, more: list[onnx.ValueInfoProto], shapes: bool = True
) -> ModelProto:
    """A model around some nodes, with the original's inputs, constants and outputs."""
    graph = model.graph
    outputs = list(graph.output)
    if not shapes:
        kinds = [value.type.tensor_type.elem_type for value in graph.output]
        outputs = [
            helper.make_tensor_value_info(v.name, kind, None) for v, kind in zip(graph.output, kinds, strict=True)
        ]
    return helper.make_model(
        helper.make_graph(nodes, "outer", [*graph.input, *more], outputs, list(graph.initializer)),
        opset_imports=[*model.opset_import, helper.make_opsetid("nested", 1)],
        ir_version=max(model.ir_version, 8),
    )


def in_branches(model: ModelProto) -> ModelProto:
    """In both branches of an If; what one of them does besides keeps them from being equal."""
    outputs = [value.name for value in model.graph.output]
    other = body_of(model.graph, "other_", captures=False)
    other.node.append(helper.make_node("Effect", [], ["other_effect"], domain="nested"))
    node = helper.make_node("If", ["outer_condition"], outputs, then_branch=body_of(model.graph), else_branch=other)
    return whole(model, [node], more=[helper.make_tensor_value_info("outer_condition", TensorProto.BOOL, [])])


def in_a_loop(model: ModelProto) -> ModelProto:
    """In the body of a Loop that collects its results."""
    body = body_of(model.graph)
    body.input.extend(
        [
            helper.make_tensor_value_info("outer_iteration", TensorProto.INT64, []),
            helper.make_tensor_value_info("outer_go", TensorProto.BOOL, []),
        ]
    )
    body.node.append(helper.make_node("Identity", ["outer_go"], ["outer_goes_on"]))
    results = list(body.output)
    del body.output[:]
    body.output.extend([helper.make_tensor_value_info("outer_goes_on", TensorProto.BOOL, []), *results])
    node = helper.make_node("Loop", ["outer_trips", ""], [value.name for value in model.graph.output], body=body)
    more = [helper.make_tensor_value_info("outer_trips", TensorProto.INT64, [])]
    return whole(model, [node], more=more, shapes=False)


def in_a_scan(model: ModelProto) -> ModelProto:
    """In the body of a Scan that collects its results."""
    body = body_of(model.graph)
    body.input.append(helper.make_tensor_value_info("outer_slice", TensorProto.FLOAT, []))
    names = [value.name for value in model.graph.output]
    node = helper.make_node("Scan", ["outer_slices"], names, body=body, num_scan_inputs=1)
    more = [helper.make_tensor_value_info("outer_slices", TensorProto.FLOAT, ["outer_slices"])]
    return whole(model, [node], more=more, shapes=False)


def in_a_function(model: ModelProto) -> ModelProto:
    """In a local function that brings its constants."""
    graph = model.graph
    constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in graph.initializer]
    inputs, outputs = [value.name for value in graph.input], [value.name for value in graph.output]
    made = whole(model, [helper.make_node("Function", inputs, outputs, domain="nested")], more=[])
    del made.graph.initializer[:]
    made.functions.append(
        helper.make_function("nested", "Function", inputs, outputs, [*constants, *graph.node], list(model.opset_import))
    )
    return made


WRAPPERS: dict[str, tuple[Callable[[ModelProto], ModelProto], int, dict[str, int]]] = {
    "branches": (in_branches, 2, {"If": 1, "nested::Effect": 1}),
    "loop": (in_a_loop, 1, {"Loop": 1, "Identity": 1}),
    "scan": (in_a_scan, 1, {"Scan": 1}),
    "function": (in_a_function, 1, {"nested::Function": 1}),
}


OLDEST = {"branches": 1, "loop": 11, "scan": 9, "function": 1}
"""The version of ai.onnx from which on each can be written so: Loop without states, Scan without lengths."""


def opset(model: ModelProto) -> int:
    """The version of ai.onnx that a model imports."""
    return int(next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")))


def counts(model: ir.Model) -> Counter[str]:
    """Nodes by op; Constants are left out: a function holds its constants so."""
    return Counter({op: count for op, count in figures(model).ops.items() if op != "Constant"})


def rewritten(
    name: str, model: ModelProto, more: dict[str, Any], *, compare: bool = False
) -> tuple[bool, Counter[str]]:
    """Whether a pass changes a model, and what is left of it; the numbers are compared if asked for."""
    loaded = load(model)
    options = more.get("options") or all_fusions(more.get("target", "ort"))
    changed, _ = run(name, loaded, level=more.get("level"), options=options)
    if compare:
        finite = registry.installed().find(name).numerics is Numerics.FINITE
        inputs = draw_inputs(load(model)) | (more.get("inputs") or {})
        inputs |= {name: np.array(2) for name in inputs if name == "outer_trips"}
        outcome = verify(load(model), loaded, inputs=inputs, finite_math=finite, in_process=True)
        assert outcome.status != "differs", outcome.reason
    return changed, counts(loaded)


@pytest.mark.parametrize("name", PASSES)
def test_in_nested_graphs(name: str) -> None:
    tried, failures = 0, dict[str, list[str]]()
    for model, more in examples(name, most=None):
        changed, flat = rewritten(name, model, more) if can_be_wrapped(model) else (False, Counter())
        if not changed:
            continue
        kinds = [kind for kind in WRAPPERS if opset(model) >= OLDEST[kind]]
        for kind in kinds if tried < MAX_EVERYWHERE else [kinds[tried % len(kinds)]]:
            compare = tried == 0 and kind in ("loop", "function") and name in COMPARED and more.get("numbers", True)
            if why := left_over(name, kind, model, more, flat, compare=compare):
                failures.setdefault(kind, []).append(f"{kind}: {why} of {model.graph}")
        tried += 1
    for kind, found in failures.items():
        assert len(found) <= OTHERWISE.get((name, kind), (0, ""))[0], "\n".join(found)
    assert tried or name in {*WITHOUT, *WHOLE_RUNS} or not has_tests(name), "no example can be wrapped"


def left_over(
    name: str, kind: str, model: ModelProto, more: dict[str, Any], flat: Counter[str], *, compare: bool
) -> str | None:
    """What is left of an example in a graph of some kind beyond what is left of the example by itself."""
    wrap, copies, wrapper = WRAPPERS[kind]
    changed, nested = rewritten(name, wrap(model), more, compare=compare)
    most = Counter({op: count * copies for op, count in flat.items()})
    most.update(wrapper)
    if not changed:
        return "nothing was rewritten"
    return f"{dict(nested)}, more than {dict(most)}, is left" if nested - most else None


WITHOUT = {
    "function_inlining": "its examples have functions",
}

ALWAYS = "that a size is not 0 is proven by a node that always runs"
OTHERWISE = {
    ("if_merging", "branches"): (1, "what both branches give is given by neither, with a copy outside"),
    ("constant_folding", "function"): (1, "a Constant stays one"),
    ("expert_routing_merging", "branches"): (1, "both branches read the mask"),
    ("gathered_product_decomposition", "scan"): (1, "the rows are not all that is open"),
    ("group_fusion", "branches"): (3, "each group has a name of its own"),
    **{("reshape_transpose_fusion", kind): (2, ALWAYS) for kind in WRAPPERS},
    **{("relative_column_conversion", kind): (1, ALWAYS) for kind in WRAPPERS},
}
"""Examples of which more is left in a graph of a kind: how many at most, and why."""
