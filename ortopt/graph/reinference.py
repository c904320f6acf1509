"""Inference after edits: nodes whose operands have changed are inferred again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import facts, scope
from ortopt.graph.index import OpIndex
from ortopt.graph.undo_log import UndoLog
from ortopt.onnx_ir_internals import attributes_of, meta_of, trivially_same_type

_SEQUENCES = frozenset({"SequenceConstruct", "SplitToSequence"})
"""Ops whose results have no facts about their elements: inference of a user asks these nodes."""

_MAX_TIMES = 8
"""How often a run infers one node again: shapes get better in few steps."""


class Reinference:
    """Keeps account of the nodes whose operands have changed, and infers them again.

    Args:
        model: The model.
        index: Its nodes.
        log: Where changes are recorded.
        touched: Nodes of whose operands something else is known are added to this list.

    Attributes:
        outdated: Nodes to infer again, oldest first; edits append to it.
    """

    def __init__(self, model: ir.Model, index: OpIndex, log: UndoLog, touched: list[ir.Node]) -> None:
        self._model = model
        self._index = index
        self._log = log
        self._touched = touched
        self.outdated: list[ir.Node] = []

    def run(self, infer: Callable[[ir.Node], None], token: CancellationToken = NEVER) -> bool:
        """Infer again the nodes of which edits have changed the operands, and their users as far as results change.

        Args:
            infer: Infers a node that has been inferred before.
            token: Cancellation token; values that have not been inferred again by then stay as they are.

        Returns:
            Whether more, or something else, is known of any value; the users of such values are touched.
        """
        queue = deque(dict.fromkeys(node for node in token.checked(self.outdated) if node.graph is not None))
        self.outdated.clear()
        functions = self._model.functions
        queued, times, changed = set(queue), dict.fromkeys(queue, 0), False
        for node in token.checked(_drained(queue)):
            queued.discard(node)
            if node.graph is None or node.graph not in self._index or times[node] == _MAX_TIMES:
                continue
            if node.op_identifier() in functions:
                continue  # a call is not inferred by itself
            times[node] += 1
            for value in self._inferred_otherwise(node, infer):
                changed = True
                for user in self._followers(value):
                    self._touched.append(user)
                    times.setdefault(user, 0)
                    if user not in queued:
                        queued.add(user)
                        queue.append(user)
        return changed

    def _inferred_otherwise(self, node: ir.Node, infer: Callable[[ir.Node], None]) -> list[ir.Value]:
        """The values of a node, and of the graphs below it, of which inference now says something else, or may."""
        values = [value for user in scope.with_nested(node) for value in user.outputs]
        if attributes_of(node):
            values += [value for graph in scope.nested(node) for value in graph.inputs]
        before = [(value.type, value.shape, dict(value.meta)) for value in values]
        infer(node)
        changed = []
        for value, (type_, shape, meta) in zip(values, before, strict=True):
            if value.type == type_ and value.shape == shape and value.meta == meta:
                continue
            self._log.record(_restore_facts, value, type_, shape, meta)
            changed.append(value)
        if node.op_type in _SEQUENCES and not changed:
            changed.extend(node.outputs)
        return changed

    def _followers(self, value: ir.Value) -> list[ir.Node]:
        """The users of a value, and the node whose graph gives it."""
        users = [use.node for use in value.uses()]
        if value.is_graph_output() and value.graph is not None:
            above = scope.of(value.graph).parent
            if isinstance(above, ir.Node):
                users.append(above)
        return users


def infers_alike(old: ir.Value, new: ir.Value) -> bool:
    """Whether inference gives a node the same results, whichever of the two values it reads."""
    if trivially_same_type(old, new, facts.INTEGERS):
        return True
    type_ = old.type
    if type_ is not new.type and type_ != new.type:
        return False
    has_facts = meta_of(old) or meta_of(new)
    if (has_facts or old.shape is not new.shape) and facts.shape_of(old) != facts.shape_of(new):
        return False
    tensor, known = semantics.constant_tensor(old), semantics.constant_tensor(new)
    if tensor is not None and known is not None:
        return True
    if type_ is not None and type_.dtype in facts.INTEGERS:
        content = facts.all_contents(old)
        if content is not None and all(isinstance(element, int) for element in content):
            return True  # all that there is to know
        return content == facts.all_contents(new)
    constant_ = known if tensor is None else tensor
    return constant_ is None or constant_.size > facts.MAX_ELEMENTS  # inference may read few: the factors of a Resize


def _drained(queue: deque[ir.Node]) -> Iterator[ir.Node]:
    """The nodes in a queue, and those that are added meanwhile."""
    while queue:
        yield queue.popleft()


def _restore_facts(
    value: ir.Value, type_: ir.TypeProtocol | None, shape: ir.Shape | None, meta: Mapping[str, object]
) -> None:
    value.type, value.shape = type_, shape
    value.meta.clear()
    value.meta.update(meta)
