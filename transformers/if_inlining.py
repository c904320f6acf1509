"""An If whose condition is constant always takes the same branch."""

import numpy as np
import onnx_ir as ir

from ortopt.graph import facts, scope
from ortopt.graph.edit import Conflict
from ortopt.graph.match import Refusal, attribute, need, tensor_of, values
from ortopt.options import TransformerLevel
from ortopt.semantics import subgraphs
from ortopt.transformer import Context, GraphTransformer


class IfInlining(GraphTransformer):
    """``If(constant)`` → the nodes of the branch that it takes."""

    levels = (TransformerLevel.LEVEL1,)
    offers_rewrites = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        """Inline the decided Ifs of a graph, and those that come into it."""
        pending = list(reversed(context.edit.index.nodes(graph, "If")))
        changed = False
        while pending:
            node = pending.pop()
            try:
                branch = _taken(node)
            except Refusal as refusal:
                context.refuse(node, refusal)
                continue
            if not context.rewrite((node,)):
                continue
            start = context.edit.version
            try:
                moved = _inline(node, branch, context)
            except Conflict as conflict:
                context.edit.rollback(start)
                context.rewrites -= 1
                context.refuse(node, conflict)
                continue
            changed = True
            context.observers.rewrote(self, moved, context.workspace.offered)
            pending.extend(inner for inner in reversed(moved) if inner.op_type == "If" and inner.domain == "")
        return changed


def _taken(node: ir.Node) -> ir.Graph:
    """The branch that an If always takes."""
    (condition,) = values(node, 1)
    tensor = tensor_of(condition)
    need(tensor.dtype == ir.DataType.BOOL and tensor.size == 1, "the condition is not one boolean", condition)
    name = "then_branch" if np.asarray(tensor.numpy()).reshape(-1)[0] else "else_branch"
    branch: ir.Graph | None = attribute(node, name, None)
    if branch is None:
        raise Refusal(f"it has no {name}", node)
    need(not branch.inputs, "the branch has inputs", node)
    need(len(branch.outputs) >= len(node.outputs), "the branch has too few results", node)
    return branch


def _inline(node: ir.Node, branch: ir.Graph, context: Context) -> list[ir.Node]:
    """Put the nodes of a branch in the place of the If; the nodes."""
    edit = context.edit
    results = list(branch.outputs)
    known = [(result, shape) for result in results if (shape := facts.shape_of(result)) is not result.shape]
    edit.clear_outputs(branch)
    for result, shape in known:  # what the branch declared is no interface any more
        edit.set_type(result, result.type, shape)
    prefix = node.name or node.outputs[0].name or node.op_type
    for value in tuple(branch.initializers.values()):
        adopted = edit.adopt_initializer(value, node)
        results = [adopted if result is value else result for result in results]
    moved = list(branch)
    own: set[ir.Value] = set()
    for inner in moved:
        edit.move_before(inner, node)
        for value in inner.outputs:
            own.add(value)
            if value.name:  # a later node, or another branch, may bear the same name
                edit.rename(value, edit.fresh_name(f"{prefix}/{value.name}"))
    replacements: dict[ir.Value, ir.Value] = {}
    for old, result in zip(node.outputs, results, strict=False):
        new = result
        if new in own and not old.is_graph_output():
            name = old.name
            edit.rename(old, edit.fresh_name(f"{name}/replaced"))
            edit.rename(new, name)
        elif new not in own and old.is_graph_output():
            copy = ir.node("Identity", [new])
            edit.insert([copy], node, [node])
            moved.append(copy)
            new = copy.outputs[0]
        own.discard(new)  # it has found its name
        replacements[old] = new
    operands = [value for graph in below(node) for inner in graph for value in inner.inputs if value is not None]
    edit.replace(replacements, before=node, origin=[node])
    if node.graph is not None:  # the branch that is not taken may hold what is never removed on its own
        edit.remove(node)
        edit.sweep([producer for value in operands if (producer := value.producer()) is not None])
    return moved


def below(node: ir.Node) -> list[ir.Graph]:
    """All graphs below a node."""
    return [graph for inner in subgraphs(node) for graph in scope.below(inner)]
