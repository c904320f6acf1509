"""For authors of transformers: text before, text after, numbers compared, refusals by their reasons.

A model is written in ONNX's text form; ``main (float[N,4] x) => (float[N,4] y) { y = Relu (x) }`` is enough, the header
is added. Constants go into ``<...>`` after the outputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ortopt import registry
from ortopt.api import figures
from ortopt.cancellation import NEVER
from ortopt.framework.workspace import Workspace
from ortopt.graph import scope
from ortopt.graph.index import op_key
from ortopt.instrumentation.explanation import Explanation
from ortopt.manager import GraphTransformerManager
from ortopt.options import Fusions, Numerics, Options, Target, TransformerLevel
from ortopt.semantics import constant_tensor
from ortopt.semantics.domains import MICROSOFT
from ortopt.serialization.checks.structure import validate
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.transformer import GraphTransformer
from ortopt.verification.verify import verify

DEFAULT_OPSET = 17


def parse(text: str, opset: int = DEFAULT_OPSET) -> ir.Model:
    """A model from ONNX's text form.

    Args:
        text: A graph, or a whole model with its header and functions. Without a header the model imports ai.onnx at
            `opset` and com.microsoft at 1.
        opset: The version of ai.onnx, where the text has no header.

    Returns:
        The model, loaded as a file would be.
    """
    text = text.strip()
    if not text.startswith("<"):
        imports = f'"" : {opset}' + (f', "{MICROSOFT}" : 1' if MICROSOFT in text else "")
        text = f"<ir_version: 10, opset_import: [{imports}]> {text}"
    return load(ir.to_proto(ir.from_onnx_text(text)))


def canonical(model: ir.Model) -> str:
    """What a model computes, as text that does not depend on the names or the order of its nodes.

    Args:
        model: The model.

    Returns:
        One line a node, in the order in which the outputs need them; equal for equal graphs.
    """
    lines: list[str] = []
    _canonical_graph(model.graph, {}, lines, "")
    for identifier, function in sorted(model.functions.items()):
        lines.append(f"function {identifier}")
        _canonical_graph(function.graph, {}, lines, "  ")
    return "\n".join(lines)


def _canonical_graph(graph: ir.Graph, outer: Mapping[ir.Value | None, str], lines: list[str], indent: str) -> None:
    names: dict[ir.Value | None, str] = {None: "-", **outer}
    for position, value in enumerate(graph.inputs):
        names[value] = f"input{position}"
    counter = len(outer)

    def name_of(value: ir.Value) -> str:
        tensor = constant_tensor(value)
        if tensor is None:
            return names[value]
        content = tensor.numpy()
        digest = np.array2string(content.reshape(-1), threshold=32, separator=",", max_line_width=10_000)
        return f"{tensor.dtype.name.lower()}{list(tensor.shape.numpy())}{digest}"

    pending = [value.producer() for value in reversed(graph.outputs)]
    pending += [node for node in reversed(list(graph)) if node.op_type != "Constant"]
    stack = [(node, False) for node in reversed(pending) if node is not None and node.graph is graph]
    stack.reverse()
    done: set[ir.Node] = set()
    while stack:
        node, ready = stack.pop()
        if node in done or (node.op_type == "Constant" and constant_tensor(node.outputs[0]) is not None):
            continue
        if not ready:
            stack.append((node, True))
            for operand in reversed(node.inputs):
                producer = None if operand is None else operand.producer()
                if producer is not None and producer.graph is graph and producer not in done:
                    stack.append((producer, False))
            continue
        done.add(node)
        inputs = ", ".join("-" if value is None else name_of(value) for value in node.inputs)
        attributes = ", ".join(sorted(_attribute(attribute) for attribute in node.attributes.values()))
        used = []
        for value in node.outputs:
            counter += 1
            names[value] = f"{indent.count(' ')}v{counter}"
            used.append(names[value] if value.uses() or value.is_graph_output() else "-")
        while used and used[-1] == "-":
            used.pop()
        op = op_key(node.domain, node.op_type)
        lines.append(f"{indent}{', '.join(used)} = {op}<{attributes}>({inputs})")
        for attribute in node.attributes.values():
            if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
                lines.append(f"{indent}  {attribute.name}:")
                _canonical_graph(attribute.value, names, lines, indent + "  ")
    lines.append(f"{indent}=> {', '.join(name_of(value) for value in graph.outputs)}")


def _attribute(attribute: ir.Attr) -> str:
    if attribute.is_ref():
        return f"{attribute.name}=@{attribute.ref_attr_name}"
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return f"{attribute.name}=..."
    if attribute.type == ir.AttributeType.TENSOR:
        return f"{attribute.name}={attribute.value.numpy().tolist()}"
    if attribute.type == ir.AttributeType.FLOAT:
        return f"{attribute.name}={np.float32(attribute.value)}"
    return f"{attribute.name}={attribute.value}"


def all_fusions(target: str = "ort") -> Options:
    """Options under which a transformer rewrites what it can, whatever the provider's kernels cost, on one thread.

    Args:
        target: ``"onnx"`` or ``"ort"``.
    """
    return Options(target=Target(target), fusions=Fusions.ALL, for_threads=1)


def run(
    transformer: str | GraphTransformer,
    model: ir.Model,
    *,
    level: int | None = None,
    options: Options | None = None,
) -> tuple[bool, Explanation]:
    """Run one transformer alone on a model, in place, to its fixed point.

    Args:
        transformer: Its name, or an instance.
        model: The model.
        level: The level to run it at; the first that it declares if None.
        options: What the run wants; `all_fusions` if None.

    Returns:
        Whether it changed anything, and what it refused and rewrote.
    """
    modified, explanation, _ = _run(_instance(transformer), model, level, options or all_fusions())
    return modified, explanation


def _run(
    transformer: GraphTransformer, model: ir.Model, level: int | None, options: Options
) -> tuple[bool, Explanation, set[Numerics]]:
    """As `run`; also what its rewrites may have done to numbers, which a rule may say of each match."""
    explanation = Explanation()
    manager = GraphTransformerManager(options=options, observers=[explanation])
    at = TransformerLevel(type(transformer).levels[0] if level is None else level)
    manager.register(transformer, at)
    workspace = Workspace(model, options)
    modified = manager.run(workspace, at, NEVER)
    return modified, explanation, {numerics for _, numerics in workspace.state.numerics}


def check_rewrites(
    transformer: str | GraphTransformer,
    before: str | ir.Model,
    after: str | None = None,
    *,
    ops: Mapping[str, int] | None = None,
    opset: int = DEFAULT_OPSET,
    level: int | None = None,
    target: str = "ort",
    options: Options | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    numbers: bool = True,
) -> ir.Model:
    """Check that a transformer rewrites a model as told, that the numbers stay, and that a second run changes nothing.

    Args:
        transformer: Its name, or an instance.
        before: The model (see `parse`).
        after: What it must become: a graph, or only the statements of its body, then with the inputs and outputs of
            `before`. Compared without regard to names and order.
        ops: Node counts by op that the result must have; ops with count 0 must be gone.
        opset: The version of ai.onnx.
        level: The level to run at; the first that the transformer declares if None.
        target: ``"onnx"`` or ``"ort"``.
        options: What else the run wants; `all_fusions` if None.
        inputs: Inputs for the comparison of numbers; seeded ones if None.
        numbers: Whether the numbers can be compared: not where ONNX Runtime has no kernel for the original.

    Returns:
        The rewritten model, for further questions.

    Raises:
        AssertionError: If anything is not so; says what.
    """
    model = parse(before, opset) if isinstance(before, str) else load(before)
    original = load(model)
    chosen = options or all_fusions(target)
    changed, explanation, done = _run(_instance(transformer), model, level, chosen)
    reasons = "; ".join(f"{refusal.op}: {refusal.reason}" for refusal in explanation.refusals)
    assert changed, f"nothing was rewritten. Refusals: {reasons or 'none'}"
    validate(model)
    _check_interface(original, model)
    if after is not None:
        expected = parse(_whole(after, before), opset)
        assert canonical(model) == canonical(expected), (
            f"the result is\n{canonical(model)}\nand not\n{canonical(expected)}\nRefusals: {reasons or 'none'}"
        )
    if ops is not None:
        counts = figures(model).ops
        got = {op: counts.get(op, 0) for op in ops}
        assert got == dict(ops), f"the result has {got}, not {dict(ops)}. Refusals: {reasons or 'none'}"
    if numbers:
        finite = Numerics.FINITE in done
        outcome = verify(original, model, inputs=inputs, finite_math=finite, in_process=True)
        assert outcome.status == "verified", f"{outcome.status}: {outcome.reason}"
    first = to_bytes(model)
    again, second = run(transformer, model, level=level, options=chosen)
    assert not again, f"a second run rewrote {[rewrite.nodes for rewrite in second.rewrites]}"
    assert to_bytes(model) == first, "a second run changed the bytes"
    return model


def check_keeps(
    transformer: str | GraphTransformer,
    before: str | ir.Model,
    because: str | None = None,
    *,
    opset: int = DEFAULT_OPSET,
    level: int | None = None,
    target: str = "ort",
    options: Options | None = None,
) -> None:
    """Check that a transformer leaves a model as it is, to the byte, and for the right reason.

    Args:
        transformer: Its name, or an instance.
        before: The model (see `parse`).
        because: A part of the reason that it must give; None where the model has no candidate.
        opset: The version of ai.onnx.
        level: The level to run at.
        target: ``"onnx"`` or ``"ort"``.
        options: What else the run wants; `all_fusions` if None.

    Raises:
        AssertionError: If it changes anything, or gives another reason.
    """
    model = parse(before, opset) if isinstance(before, str) else load(before)
    untouched = canonical(model)
    changed, explanation = run(transformer, model, level=level, options=options or all_fusions(target))
    rewrites = [(rewrite.transformer, rewrite.nodes) for rewrite in explanation.rewrites]
    assert not changed, f"it was rewritten: {rewrites}"
    assert canonical(model) == untouched, "it says that nothing changed, but the graph did"
    reasons = [refusal.reason for refusal in explanation.refusals]
    if because is not None:
        assert any(because in reason for reason in reasons), f"the reasons are {reasons}, not {because!r}"


def _instance(transformer: str | GraphTransformer) -> GraphTransformer:
    return registry.installed().find(transformer)() if isinstance(transformer, str) else transformer


def _whole(after: str, before: str | ir.Model) -> str:
    """The statements of a body as a graph with the inputs and outputs of another."""
    if re.match(r"\s*(<|\w+\s*\()", after) and "=>" in after:
        return after
    assert isinstance(before, str), "give the whole graph: the original is no text"
    header = before[: before.index("{", before.index("=>"))]
    if "<" in header[header.index("=>") :]:
        opening = header.index("<", header.index("=>"))
        if "{" in before[opening : before.index(">", opening)]:
            end = before.index(">", before.rindex("}", opening, before.index(">", opening)))
            header = before[: end + 1]
    return f"{header} {{ {after} }}"


def _check_interface(original: ir.Model, model: ir.Model) -> None:
    for kind in ("inputs", "outputs"):
        had = [(v.name, v.type, v.shape) for v in getattr(original.graph, kind)]
        has = [(v.name, v.type, v.shape) for v in getattr(model.graph, kind)]
        assert had == has, f"the {kind} were {had} and are {has}"
    for graph in scope.graphs(model):
        for value in graph.initializers.values():
            assert value.uses() or value.is_graph_output() or value.is_graph_input(), f"{value.name} is unused"
        values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
        for use in (use for value in values for use in value.uses()):
            assert use.node.graph is not None, f"a {use.node.op_type} was built in vain: it still counts as a user"
