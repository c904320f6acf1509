"""Passes that are deliberately wrong, each in its own way; for the tests of verification, repair and checks."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortopt import Context, GraphTransformer, RewriteRule, TransformerLevel
from ortopt.graph import scope
from ortopt.graph.edit import Editor, constant
from ortopt.graph.match import inputs, need
from ortopt.rule import Forwarded
from ortopt.semantics import GROUP_DOMAIN
from tests.rules import Swap


class WrongRelu(Swap):
    """Relu becomes Neg."""


class WrongBranch(Swap):
    """Neg becomes Abs."""

    roots = ("Neg",)
    becomes = "Abs"


class WrongTanh(Swap):
    """Tanh becomes Sin."""

    levels = (TransformerLevel.LEVEL2,)
    roots = ("Tanh",)
    becomes = "Sin"


class WrongAtTwoLevels(Swap):
    """Sigmoid becomes Tanh, at the second level."""

    levels = (TransformerLevel.LEVEL1, TransformerLevel.LEVEL2)
    roots = ("Sigmoid",)
    becomes = "Tanh"

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Tanh", [found.value])


class WrongSum(Swap):
    """An addition of integers becomes a subtraction."""

    roots = ("Add",)
    becomes = "Sub"


class WrongText(RewriteRule[Forwarded]):
    """A concatenation of texts becomes one of the second text with itself."""

    roots = ("StringConcat",)

    def match(self, root: ir.Node) -> Forwarded:
        need(root.inputs[0] is not root.inputs[1], "it is one")
        return Forwarded((root,), inputs(root, 2)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        _, second = found.nodes[0].inputs
        return ir.node("StringConcat", [second, second])


class WrongRaw(GraphTransformer):
    """Every Abs becomes a Neg, behind the editor's back, on a clone."""

    bypasses_editor = True

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        changed = False
        for node in graph:
            if node.op_type == "Abs":
                node.op_type = "Neg"
                changed = True
        return changed


class NoOffer(GraphTransformer):
    """Every Floor becomes a Ceil, without an offer."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        found = [node for node in graph if node.op_type == "Floor"]
        for node in found:
            new = ir.node("Ceil", list(node.inputs))
            context.replace({node.outputs[0]: new.outputs[0]}, node, [node])
        return bool(found)


class WrongAxis(RewriteRule[Forwarded]):
    """Softmax over the last axis becomes one over the first: right where it does not matter."""

    roots = ("Softmax",)

    def match(self, root: ir.Node) -> Forwarded:
        if root.attributes.get_int("axis", -1) == 0:
            inputs(root, 7)  # refuses
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Softmax", [found.value], attributes={"axis": 0})


class Crash(Swap):
    """Mod by 3 becomes a division by zero, which ends the process or fails."""

    roots = ("Mod",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Div", [found.value, constant(np.zeros((), np.int64))])


class Unloadable(Swap):
    """Elu becomes an op with an attribute that no kernel takes."""

    roots = ("Elu",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Softmax", [found.value], attributes={"axis": 17})


class Raises(Swap):
    """Nothing becomes of an Exp."""

    roots = ("Exp",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        raise RuntimeError("there is no such thing")


class Loops(GraphTransformer):
    """Goes round and round."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        number = 0
        while True:
            number += 1


class LoopsInTheFramework(GraphTransformer):
    """Sorts the graph for ever: it is never seen in its own code for long."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        for _ in iter(int, 1):
            graph.sort()
        return False


class WrongType(GraphTransformer):
    """Says of every Relu's result that it is int64."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        for node in graph:
            if node.op_type == "Relu" and node.outputs[0].dtype == ir.DataType.FLOAT:
                value = node.outputs[0]
                context.edit.set_type(value, ir.TensorType(ir.DataType.INT64), value.shape)
                return True
        return False


class WrongShape(RewriteRule[Forwarded]):
    """Relu becomes a Relu whose result is said to have another shape."""

    def match(self, root: ir.Node) -> Forwarded:
        if root.doc_string == "told":
            inputs(root, 7)  # refuses
        return Forwarded((root,), inputs(root, 1)[0])

    roots = ("Relu",)

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Relu", [found.value], doc_string="told")


class Tears(GraphTransformer):
    """Takes the first Relu out of its graph behind the editor's back."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        for node in graph:
            if node.op_type == "Relu":
                graph.remove(node)
                return True
        return False


class TearsInARule(RewriteRule[Forwarded]):
    """Takes the second node above a Tanh out of its graph behind the editor's back, while it rewrites the Tanh."""

    roots = ("Tanh",)

    def match(self, root: ir.Node) -> Forwarded:
        need(root.doc_string != "told", "it was")
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        above = found.value.producer()
        assert above is not None
        assert above.inputs[0] is not None
        torn = above.inputs[0].producer()
        assert torn is not None
        assert torn.graph is not None
        torn.graph.remove(torn)
        return ir.node("Tanh", [found.value], doc_string="told")


class Nearly(RewriteRule[Forwarded]):
    """Identity becomes a product with nearly one: no difference until it is subtracted."""

    roots = ("Identity",)

    def match(self, root: ir.Node) -> Forwarded:
        return Forwarded((root,), inputs(root, 1)[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        return ir.node("Mul", [found.value, constant(np.array(1.000001, np.float32))])


class OutOfOrder(GraphTransformer):
    """Moves the last node to the front."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        if len(graph) < 2 or graph[0].op_type == "Tanh":
            return False
        nodes = list(graph)
        context.edit.reorder(graph, [nodes[-1], *nodes[:-1]])
        return True


class RenamesOutput(GraphTransformer):
    """Gives the first output another name."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        if not graph.outputs or graph.outputs[0].name == "renamed":
            return False
        context.edit.rename(graph.outputs[0], "renamed")
        return True


class LeavesAUser(GraphTransformer):
    """Makes a node of no graph use the first input, and leaves it there."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[ir.Node] = []

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        if self.kept or not graph.inputs:
            return False
        self.kept.append(ir.node("Relu", [graph.inputs[0]]))
        return False


class TearsAGroupCall(GraphTransformer):
    """A group's call loses its last argument."""

    levels = (TransformerLevel.LEVEL4,)
    after = ("group_fusion",)

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        for node in graph:
            if node.domain == GROUP_DOMAIN and len(node.inputs) == 2:
                context.edit.set_inputs(node, node.inputs[:1])
                return True
        return False


class WrongInAGroup(WrongTanh):
    """Tanh becomes Sin where it is in a group."""

    levels = (TransformerLevel.LEVEL4,)
    after = ("group_fusion",)

    def match(self, root: ir.Node) -> Forwarded:
        graph = root.graph
        need(isinstance(graph, ir.Graph) and scope.of(graph).in_function, "it is in no group", root)
        return super().match(root)


class BreaksAGroup(GraphTransformer):
    """A group is no longer as the format says; `break_group` does it."""

    levels = (TransformerLevel.LEVEL4,)
    after = ("group_fusion",)

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        version = context.edit.version
        for node in list(graph):
            if node.domain == GROUP_DOMAIN:
                function = context.model.functions.get(node.op_identifier())
                if function is not None:
                    self.break_group(node, function, context.edit)
        return context.edit.version != version

    def break_group(self, call: ir.Node, function: ir.Function, edit: Editor) -> None:
        """Break it, if it is whole."""
        raise NotImplementedError


class MiscountsWeights(BreaksAGroup):
    """A group has more weights than inputs."""

    def break_group(self, call: ir.Node, function: ir.Function, edit: Editor) -> None:
        edit.set_metadata(function, "ortopt.weights", "99")


class GarblesMetadata(BreaksAGroup):
    """Nobody can read how many weights a group has."""

    def break_group(self, call: ir.Node, function: ir.Function, edit: Editor) -> None:
        edit.set_metadata(function, "ortopt.weights", "many")


class GarblesOrigin(BreaksAGroup):
    """Nobody can read where a group comes from."""

    def break_group(self, call: ir.Node, function: ir.Function, edit: Editor) -> None:
        edit.set_metadata(function, "ortopt.origin", "[1, 2]")


class DropsAResult(BreaksAGroup):
    """A group has fewer outputs than its call."""

    def break_group(self, call: ir.Node, function: ir.Function, edit: Editor) -> None:
        if len(function.outputs) == len(call.outputs):
            edit.keep_arguments(function, range(len(function.inputs)), range(len(function.outputs) - 1))


class RemovesAGroup(BreaksAGroup):
    """A group is called, and is not there."""

    def break_group(self, call: ir.Node, function: ir.Function, edit: Editor) -> None:
        edit.remove_function(function)


class Hidden(RewriteRule[Forwarded]):
    """A node becomes others that give the same for most inputs; `changed` makes them."""

    def match(self, root: ir.Node) -> Forwarded:
        need(root.doc_string != "told", "it was")
        return Forwarded((root,), inputs(root, len(root.inputs))[0])

    def rewrite(self, found: Forwarded) -> ir.Node:
        new = self.changed(found)
        new.doc_string = "told"
        return new

    def changed(self, found: Forwarded) -> ir.Node:
        """What it becomes."""
        raise NotImplementedError


class WrongBeyondFifty(Hidden):
    """Abs becomes one of numbers that are cut off at 50."""

    roots = ("Abs",)

    def changed(self, found: Forwarded) -> ir.Node:
        cut = ir.node("Clip", [found.value, constant(np.float32(-50)), constant(np.float32(50))])
        return ir.node("Abs", [cut.outputs[0]])


class WrongForNaN(Hidden):
    """IsNaN becomes what is never true."""

    roots = ("IsNaN",)

    def changed(self, found: Forwarded) -> ir.Node:
        return ir.node("Less", [found.value, found.value])


class WrongBeyondAThousand(Hidden):
    """Neg of integers becomes one of integers that are cut off at 1000."""

    roots = ("Neg",)

    def changed(self, found: Forwarded) -> ir.Node:
        cut = ir.node("Clip", [found.value, constant(np.int64(-1000)), constant(np.int64(1000))])
        return ir.node("Neg", [cut.outputs[0]])


class WrongBeyond32Bits(Hidden):
    """Neg of integers of 64 bits becomes one of integers of 32."""

    roots = ("Neg",)

    def changed(self, found: Forwarded) -> ir.Node:
        short = ir.node("Cast", [found.value], attributes={"to": ir.DataType.INT32.value})
        long = ir.node("Cast", [short.outputs[0]], attributes={"to": ir.DataType.INT64.value})
        return ir.node("Neg", [long.outputs[0]])


class WrongOfNegatives(Hidden):
    """Sqrt becomes Log: both give NaN for what is negative."""

    roots = ("Sqrt",)

    def changed(self, found: Forwarded) -> ir.Node:
        return ir.node("Log", [found.value])


class WrongBesideAnOutlier(Hidden):
    """A product with a constant becomes one that is half of that, but for the largest of its numbers."""

    roots = ("Mul",)

    def changed(self, found: Forwarded) -> ir.Node:
        factor = found.nodes[0].inputs[1]
        assert factor is not None
        assert factor.const_value is not None
        numbers = factor.const_value.numpy()
        halved = np.where(np.abs(numbers) == np.abs(numbers).max(), numbers, numbers / 2)
        return ir.node("Mul", [found.value, constant(halved.astype(np.float32))])


class WrongRandomness(Hidden):
    """A random op becomes one of another scale."""

    roots = ("RandomNormalLike",)

    def changed(self, found: Forwarded) -> ir.Node:
        return ir.node("RandomNormalLike", [found.value], attributes={"scale": 2.0})


class MergedRandomness(GraphTransformer):
    """Two random ops of the same input become one."""

    def apply(self, graph: ir.Graph, context: Context) -> bool:
        found = [node for node in graph if node.op_type == "RandomNormalLike"]
        if len(found) < 2:
            return False
        context.replace({found[1].outputs[0]: found[0].outputs[0]}, found[1], [found[1]])
        return True
