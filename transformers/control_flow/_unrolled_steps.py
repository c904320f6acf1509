"""Equal steps behind one another, of which each hands states to the next: what a Scan would repeat.

An exporter that unrolls a loop writes its body once for each step. Steps are found by what multiplies a state: products
by one constant matrix, one for each step. From the operands of two such products, what they are computed from is walked
in pairs, as long as both are the same; what differs is a row of something, or the state.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops, semantics
from ortopt.cancellation import CancellationToken
from ortopt.graph.detached import new_graph
from ortopt.graph.match import (
    Refusal,
    is_constant,
    is_op,
    is_used_once,
    need,
    need_known,
    opset,
    plain_attributes,
    rank,
    users,
)
from ortopt.views import index_map
from ortopt.views.emission import chain
from ortopt.views.reading import MOVES, maps

MAX_NODES: Final = 64
"""A step has fewer: a recurrent cell has some twenty."""

Place: TypeAlias = tuple[int, int]
"""Which node of a step, and which of its outputs, or of its operands."""


class Operand(NamedTuple):
    """What a node of a step reads.

    Attributes:
        made: The place in its own step that makes it, or in the step before; None for what no step makes.
        is_state: Whether the step before makes it.
        values: The values in all steps.
    """

    made: Place | None
    is_state: bool
    values: tuple[ir.Value | None, ...]

    @property
    def is_shared(self) -> bool:
        """Whether all steps read one value."""
        return self.made is None and all(value is self.values[0] for value in self.values)


class Steps(Struct, frozen=True):
    """Equal steps behind one another.

    Attributes:
        nodes: Of each step, its nodes; at the same place is what does the same.
        operands: What the nodes of a step read, by place.
        states: The places of what a step hands to the next: first what is multiplied by the matrix.
    """

    nodes: tuple[tuple[ir.Node, ...], ...]
    operands: Mapping[Place, Operand]
    states: tuple[Place, ...]

    def made(self, step: int, place: Place) -> ir.Value:
        """What a step makes at a place."""
        return self.nodes[step][place[0]].outputs[place[1]]

    def initial(self, state: Place) -> ir.Value:
        """The value of a state before the first step."""
        begins = {each.values[0] for each in self.operands.values() if each.is_state and each.made == state}
        need(len(begins) == 1, "a state begins with several values", self.made(0, state))
        return need_known(begins.pop(), "a state begins with nothing", self.made(0, state))

    @property
    def rows(self) -> dict[tuple[ir.Value | None, ...], None]:
        """What no step makes, and differs from step to step: the values in all of them."""
        others = (each for each in self.operands.values() if each.made is None and not each.is_shared)
        return dict.fromkeys(each.values for each in others)

    def read_outside(self, step: int, place: Place) -> list[ir.Node]:
        """What else than the step itself, and the next, reads what it makes at a place."""
        own = {*self.nodes[step], *(self.nodes[step + 1] if step + 1 < len(self.nodes) else ())}
        return [node for node in users(self.made(step, place)) if node not in own]

    def is_read(self, step: int, place: Place) -> bool:
        """Whether anything else reads what a step makes at a place."""
        return bool(self.read_outside(step, place)) or self.made(step, place).is_graph_output()


def unrolled(graph: ir.Graph, token: CancellationToken) -> list[tuple[ir.Node, ...]]:
    """The products by one constant matrix, where there may be one for each of at least three steps.

    Args:
        graph: The graph.
        token: Cancellation token.
    """
    products: dict[ir.Value, list[ir.Node]] = {}
    for node in token.checked(graph):
        if is_op(node, "MatMul", "Gemm") and len(node.inputs) > 1 and not is_constant(node.inputs[0]):
            matrix = node.inputs[1]
            if matrix is not None and is_constant(matrix):
                products.setdefault(matrix, []).append(node)
    return [tuple(nodes) for nodes in products.values() if len(nodes) > 2]


def steps_of(products: Sequence[ir.Node], order: Mapping[ir.Node, int]) -> Steps:
    """The steps that products by one matrix are of.

    Args:
        products: The products, in the order of the graph.
        order: The place of each node of the graph.

    Raises:
        Refusal: If they are of no equal steps.
    """
    root = products[0]
    carried = [need_known(node.inputs[0], "an operand is left out", node) for node in products]
    pairs = []
    for number in range(len(products) - 2):
        found = _paired(carried[number + 1], carried[number + 2], order)
        need(found.get(products[number + 1]) is products[number], "the products are of no equal steps", root)
        pairs.append(found)
    pairs.append(_last(products[-2:], carried[-1], pairs[-1], order))
    nodes = [tuple(sorted(pairs[0].values(), key=order.__getitem__))]
    for found in pairs:
        behind = {earlier: later for later, earlier in found.items()}
        need(behind.keys() == set(nodes[-1]), "a step has other nodes than the one before", root)
        nodes.append(tuple(behind[node] for node in nodes[-1]))
    need(len({node for step in nodes for node in step}) == sum(map(len, nodes)), "steps share nodes", root)
    stays = _without_moves_of_rows(nodes)
    return _checked(tuple(tuple(step[at] for at in stays) for step in nodes), carried[1])


def _without_moves_of_rows(nodes: Sequence[Sequence[ir.Node]]) -> list[int]:
    """The nodes of a step that do more than to move what no step makes: what they give is a row, too."""
    own = {*nodes[0], *nodes[1]}
    stays = []
    for at, node in enumerate(nodes[1]):
        reads = any(value is not None and value.producer() in own for value in node.inputs)
        if is_op(node, *MOVES) and not reads:
            own.discard(node)
        else:
            stays.append(at)
    return stays


def _paired(earlier: ir.Value, later: ir.Value, order: Mapping[ir.Node, int]) -> dict[ir.Node, ir.Node]:
    """The nodes that one value is computed from, each with the one that does the same for an earlier one.

    What comes last is walked first: what the earlier step has made is known then, and the walk ends there.
    """
    pairs: dict[ir.Node, ir.Node] = {}
    before: set[ir.Node] = set()
    pending: list[tuple[int, int, ir.Value, ir.Value]] = []
    number = itertools.count()

    def push(one: ir.Value | None, other: ir.Value | None) -> None:
        node = other.producer() if other is not None else None
        if one is not None and other is not None and one is not other and node is not None and node in order:
            heapq.heappush(pending, (-order[node], next(number), one, other))

    push(earlier, later)
    while pending:
        _, _, one, other = heapq.heappop(pending)
        node, partner = other.producer(), one.producer()
        if node is None or node in before or partner is None or partner not in order:
            continue  # the state, or what is given
        if one.index() != other.index() or not _do_the_same(partner, node):
            continue  # a row
        if node not in pairs:
            need(len(pairs) < MAX_NODES, "a step has too many nodes", node)
            pairs[node] = partner
            before.add(partner)
            for operands in zip(partner.inputs, node.inputs, strict=True):
                push(*operands)
    return pairs


def _do_the_same(one: ir.Node, other: ir.Node) -> bool:
    """Whether two nodes compute the same of their operands, and their constants are the same."""
    alike = semantics.key(one) == semantics.key(other) and len(one.inputs) == len(other.inputs)
    if not alike or len(one.outputs) != len(other.outputs) or one.domain != "":
        return False
    settings = [{name: each.value for name, each in plain_attributes(node).items()} for node in (one, other)]
    pairs = zip(one.inputs, other.inputs, strict=True)
    fits = all((a is None) == (b is None) and (a is b or not (is_constant(a) and is_constant(b))) for a, b in pairs)
    return fits and settings[0] == settings[1]


def _last(
    products: Sequence[ir.Node], carried: ir.Value, before: Mapping[ir.Node, ir.Node], order: Mapping[ir.Node, int]
) -> dict[ir.Node, ir.Node]:
    """The pairs of the last step: no product says what it gives, so that what follows from its own is tried.

    Args:
        products: The last but one product, and the last.
        carried: What the last one multiplies.
        before: The pairs of the step before.
        order: The places of nodes in the graph.
    """
    wanted, number = carried.producer(), carried.index()
    assert wanted is not None
    assert number is not None
    pending, seen = [products[1]], {products[1]}
    while pending and len(seen) < MAX_NODES:
        node = pending.pop(0)
        if semantics.key(node) == semantics.key(wanted) and len(node.outputs) > number:
            found = _paired(carried, node.outputs[number], order)
            if found.get(products[1]) is products[0] and set(found.values()) == before.keys():
                return found
        for user in (user for value in node.outputs for user in users(value)):
            if user in order and user not in seen:
                seen.add(user)
                pending.append(user)
    raise Refusal("what the last step gives is not known", products[1])


def _checked(nodes: tuple[tuple[ir.Node, ...], ...], first: ir.Value) -> Steps:
    """The steps, where each reads the same of itself, of the one before and of what is the same for all.

    Args:
        nodes: Of each step, its nodes.
        first: What the first step hands to the next, and that multiplies by the matrix.
    """
    places = [
        {value: (at, number) for at, node in enumerate(step) for number, value in enumerate(node.outputs)}
        for step in nodes
    ]
    operands = {}
    for at, node in enumerate(nodes[1]):
        for number, value in enumerate(node.inputs):
            values = tuple(step[at].inputs[number] for step in nodes)
            own, before = (places[step].get(value) if value is not None else None for step in (1, 0))
            made = own if before is None else before
            found = Operand(made, before is not None, values)
            for step in range(1 if found.is_state else 0, len(nodes)):
                read = values[step]
                expected = None if read is None else places[step - found.is_state].get(read)
                need(expected == made, "the steps read different things", nodes[step][at])
            operands[at, number] = found
    states = dict.fromkeys([places[0][first], *(each.made for each in operands.values() if each.is_state)])
    steps = Steps(nodes, operands, tuple(state for state in states if state is not None))
    need(bool(steps.rows), "the steps read no rows", root_of(steps))  # such as layers of equal weights
    for step in range(len(nodes)):
        for place in set(places[0].values()) - set(steps.states):
            need(not steps.is_read(step, place), "something else reads what is made within a step", root_of(steps))
    return steps


def root_of(steps: Steps) -> ir.Node:
    """The node that makes what the first step hands to the next: all that the steps read is there before."""
    return need_known(steps.made(0, steps.states[0]).producer(), "it is given", steps.nodes[0][0])


class Join(NamedTuple):
    """A Concat that joins a state after each step, but for those after the first few, in their order.

    Attributes:
        node: The Concat.
        axis: Along which axis, which each state has got for it.
        places: The first operand that is such a state, and the first behind them.
        first: The first step whose state it joins.
    """

    node: ir.Node
    axis: int
    places: tuple[int, int]
    first: int


class Rolled(NamedTuple):
    """Steps as a Scan.

    Attributes:
        scan: The Scan.
        replacements: For what else reads states, what it reads then.
        joined: What joins a state after each step, and by what one value is in place of them.
    """

    scan: ir.Node
    replacements: dict[ir.Value, ir.Value]
    joined: tuple[tuple[Join, ir.Value], ...]


def as_scan(steps: Steps) -> Rolled:
    """A Scan of the steps.

    Args:
        steps: The steps.

    Raises:
        Refusal: If rows are no parts of one value.
    """
    root, last = root_of(steps), len(steps.nodes) - 1
    shown = [state for state in steps.states if any(steps.is_read(step, state) for step in range(last))]
    stacks = {values: _stacked(values, root) for values in steps.rows}
    results, body = _body(steps, shown, list(stacks))
    operands = [*map(steps.initial, steps.states), *stacks.values()]
    settings: dict[str, int | ir.Graph] = {"body": body, "num_scan_inputs": len(stacks)}
    scan = ir.node("Scan", operands, settings, num_outputs=results)
    replacements, joined = {}, []
    joins = {state: _join_of(state, steps) for state in shown}
    for state, value in zip(steps.states, scan.outputs, strict=False):
        if joins.get(state) is not None or (state not in shown and steps.is_read(last, state)):
            replacements[steps.made(last, state)] = value
    for (state, join), value in zip(joins.items(), scan.outputs[len(steps.states) :], strict=True):
        if join is None:
            parts = ops.split_node(value, 0, [1] * len(steps.nodes), opset(root)).outputs
            for step, part in enumerate(parts):
                if steps.is_read(step, state):
                    replacements[steps.made(step, state)] = ops.squeezed(part, [0], opset(root))
        else:
            joined.append((join, _along(join, value, state, steps)))
    return Rolled(scan, replacements, tuple(joined))


def _body(steps: Steps, shown: Sequence[Place], rows: Sequence[tuple[ir.Value | None, ...]]) -> tuple[int, ir.Graph]:
    """The body of a Scan of the steps, and how many results it gives."""
    entries = {state: _like(steps.made(0, state)) for state in steps.states}
    read = {values: _like(need_known(values[0], "a row is left out", root_of(steps))) for values in rows}
    made: dict[Place, ir.Value] = {}
    nodes = []
    for at, node in enumerate(steps.nodes[0]):
        given: list[ir.Value | None] = []
        for number in range(len(node.inputs)):
            operand = steps.operands[at, number]
            if operand.made is not None:
                given.append((entries if operand.is_state else made)[operand.made])
            else:
                given.append(operand.values[0] if operand.is_shared else read[operand.values])
        outputs = [_like(value) for value in node.outputs]
        nodes.append(ir.Node(node.domain, node.op_type, given, list(node.attributes.values()), outputs=outputs))
        made |= {(at, number): value for number, value in enumerate(outputs)}
    copies = [ir.node("Identity", [made[state]]) for state in shown]
    results = [*(made[state] for state in steps.states), *(copy.outputs[0] for copy in copies)]
    return len(results), new_graph([*entries.values(), *read.values()], results, [*nodes, *copies], "step")


def _like(value: ir.Value) -> ir.Value:
    """A new value of the type and the shape of another."""
    return ir.Value(name=None, type=value.type, shape=value.shape)


def _stacked(values: Sequence[ir.Value | None], root: ir.Node) -> ir.Value:
    """The rows of all steps, behind one another along a new first axis."""
    rows = [{found.source: found for found in maps(need_known(value, "a row is left out", root))} for value in values]
    refusal = Refusal("rows are no parts of one value", root)
    for source in reversed(rows[0]):  # what they are furthest from comes first
        try:
            parts = [index_map.renamed(found[source], come=(0,)) for found in rows if source in found]
            need(len(parts) == len(rows), "rows are no parts of one value", root)
            return chain(index_map.concatenated(parts, 0), root).build()
        except Refusal as why:
            refusal = why
    raise refusal


def _join_of(state: Place, steps: Steps) -> Join | None:
    """The Concat that joins a state after each step, where nothing else reads any but the last; else None."""
    last = len(steps.nodes) - 1
    first = next(step for step in range(last) if steps.is_read(step, state))
    added = []
    for step in range(first, last + 1):
        readers = steps.read_outside(step, state)
        wider = [node for node in readers if is_op(node, "Unsqueeze")]
        is_alone = len(readers) == 1 and not steps.made(step, state).is_graph_output()
        if len(wider) != 1 or not (is_alone or step == last):
            return None
        added += wider
    axes, results = {ops.Unsqueeze(node).axes for node in added}, [node.outputs[0] for node in added]
    if len(axes) > 1 or not all(map(is_used_once, results)):
        return None
    node, (axis, *others) = users(results[0])[0], next(iter(axes))
    if others or not is_op(node, "Concat") or ops.Concat(node).axis_of(rank(results[0])) != axis:
        return None
    start = node.inputs.index(results[0])
    end = start + len(results)
    return Join(node, axis, (start, end), first) if list(node.inputs[start:end]) == results else None


def _along(join: Join, stack: ir.Value, state: Place, steps: Steps) -> ir.Value:
    """A state after each step, stacked along the axis along which it is joined."""
    version = opset(join.node)
    if join.first:
        stack = ops.slice_node(stack, [(0, join.first, len(steps.nodes), 1)], version).outputs[0]
    order = list(range(1, rank(steps.made(0, state)) + 1))
    order.insert(join.axis, 0)
    return ir.node("Transpose", [stack], {"perm": order}).outputs[0] if join.axis else stack
