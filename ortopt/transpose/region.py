"""Which nodes around a Transpose should work in the other layout: the cheapest choice, found as a minimal cut.

Transposes are no nodes here. A value behind a chain of them is its *root*, the value before the chain, in some layout.
Nodes, subgraphs and graph outputs *demand* roots in layouts; the node behind a root *supplies* one. A Transpose is
needed for each (root, layout) that is demanded and not supplied, once for all who demand it; constants supply all.
Each node of a region has two ways to work, as it is or turned, each with demands and a supply of its own. What a choice
costs is charged to the arcs of a network whose cheapest cut is the choice; where two turned nodes would have to be
charged together, which no network can, one is charged alone: a choice never costs more than its cut.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.graph.match import Refusal, is_constant, is_op, need, shape_of
from ortopt.onnx_ir_internals import use_count
from ortopt.patterns.permutations import moves_elements
from ortopt.patterns.rotary.block import ROOTS, rotary
from ortopt.semantics.op_traits import RESHAPING
from ortopt.transpose.layout import Layout, compose, inverse, normal
from ortopt.transpose.matmul import flexible_inputs
from ortopt.transpose.min_cut import UNBOUNDED, Network
from ortopt.transpose.plan import TYPICAL_SIZE, At, Demand, Flexible, Lift, Plan, is_one, plan, typical_size

OVERHEAD = 16_384
"""What a Transpose costs besides its bytes, in bytes."""

SINGLE = 8
"""How many bytes of other Transposes each byte takes that is copied element by element: 1 ns, where others take 0.1."""

MAX_NODES = 20_000
"""A region is not followed further."""


def permutation(node: ir.Node | None, graph: ir.Graph) -> tuple[int, ...] | None:
    """The axes that a Transpose of a graph permutes; None if it is none, or does not tell."""
    if node is None or node.op_type != "Transpose" or node.domain or node.graph is not graph:
        return None
    x = node.inputs[0]
    shape = None if x is None else shape_of(x)
    if shape is not None and is_one(x):
        return tuple(range(len(shape)))
    try:
        return ops.Transpose(node).order
    except Refusal:
        return None


class Cost(Struct, frozen=True):
    """What transposes cost.

    Attributes:
        number: How many there are.
        nbytes: The bytes through them.
        weight: The same with those of single elements weighted, and what small nodes cost for their sake.
    """

    number: int
    nbytes: int
    weight: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.number * OVERHEAD + self.weight


def bytes_of(value: ir.Value) -> int:
    """The bytes of a value; a dimension that is not known counts `TYPICAL_SIZE`, a size that is not known, two."""
    shape = shape_of(value)
    if shape is None:
        return TYPICAL_SIZE**2
    elements = 1
    for dim in shape:
        elements *= typical_size(dim)
    bits = 32 if value.dtype is None or value.dtype == ir.DataType.STRING else value.dtype.bitwidth
    return max(elements * bits // 8, 1)


class View(NamedTuple):
    """A value as what its root becomes by a chain of transposes: ``value = Transpose(root, perm)``."""

    root: ir.Value
    perm: Layout


class Port(Struct, frozen=True):
    """A need of a root: by a node's input, or, without node, by a graph output."""

    node: ir.Node | None
    position: int
    value: ir.Value
    perm: Layout


class Views:
    """The roots of one graph's values, and who needs them; to be made anew after a change.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._views: dict[ir.Value, View] = {}
        self._ports: dict[ir.Value, tuple[list[Port], list[ir.Node]]] = {}
        self._nbytes: dict[ir.Value, int] = {}
        self._factors: dict[tuple[ir.Value, Layout, Layout], int] = {}
        self._rotary: dict[ir.Node, bool] = {}

    def is_rotary(self, node: ir.Node) -> bool:
        """Whether a node gives what a rotary embedding does, whose op wants the elements of a head last."""
        if node not in self._rotary:
            self._rotary[node] = False
            if is_op(node, *ROOTS):
                with contextlib.suppress(Refusal):
                    rotary(node)
                    self._rotary[node] = True
        return self._rotary[node]

    def of(self, value: ir.Value) -> View:
        """A value's root, and how it comes from there."""
        chain: list[tuple[ir.Value, tuple[int, ...]]] = []
        at = value
        while at not in self._views:
            node = at.producer()
            perm = permutation(node, self.graph)
            if node is None or perm is None or node.inputs[0] is None:
                self._views[at] = View(at, None)
                break
            chain.append((at, perm))
            at = node.inputs[0]
        view = self._views[at]
        for passed, perm in reversed(chain):
            view = View(view.root, compose(view.perm, normal(perm)))
            self._views[passed] = view
        return view

    def ports(self, root: ir.Value) -> list[Port]:
        """Every need of a root, directly or through transposes."""
        return self._below(root)[0]

    def transposes(self, root: ir.Value) -> list[ir.Node]:
        """The transposes of a root that somebody uses, each after the one above it."""
        return self._below(root)[1]

    def _below(self, root: ir.Value) -> tuple[list[Port], list[ir.Node]]:
        if root in self._ports:
            return self._ports[root]
        ports: list[Port] = []
        transposes: list[ir.Node] = []
        constant = is_constant(root)
        pending: list[tuple[ir.Value, Layout]] = [(root, None)]
        while pending:
            value, perm = pending.pop()
            if value.is_graph_output():
                ports.append(Port(None, 0, value, perm))
            for node, position in value.uses():
                own = permutation(node, self.graph)
                if own is None:
                    if not constant or value is not root:
                        ports.append(Port(node, position, value, perm))
                elif use_count(node.outputs[0]) or node.outputs[0].is_graph_output():
                    transposes.append(node)
                    pending.append((node.outputs[0], compose(perm, normal(own))))
        self._ports[root] = (ports, transposes)
        return ports, transposes

    def cost(self, transposes: Sequence[ir.Node]) -> Cost:
        """What transposes that are there cost."""
        nbytes = weight = 0
        for node in transposes:
            value, perm = node.inputs[0], permutation(node, self.graph)
            assert value is not None and perm is not None
            nbytes += self.nbytes(value)
            weight += self.weight(value, None, inverse(normal(perm)))
        return Cost(len(transposes), nbytes, weight)

    def nbytes(self, root: ir.Value) -> int:
        """The bytes through a Transpose of a root."""
        nbytes = self._nbytes.get(root)
        if nbytes is None:
            nbytes = self._nbytes[root] = bytes_of(root)
        return nbytes

    def weight(self, root: ir.Value, has: Layout, wanted: Layout) -> int:
        """The same from one layout to another, weighted by how they move."""
        key = (root, has, wanted)
        factor = self._factors.get(key)
        if factor is None:
            factor = self._factors[key] = SINGLE if _is_single(root, has, wanted) else 1
        return factor * self.nbytes(root)


def _is_single(root: ir.Value, has: Layout, wanted: Layout) -> bool:
    """Whether a Transpose of a root from one layout to another moves its elements one by one."""
    order = compose(has, inverse(wanted))
    shape = shape_of(root)
    if order is None or shape is None:
        return False
    axes = inverse(has)
    return moves_elements(shape if axes is None else [shape[axis] for axis in axes], order)


def layout_of(demand: Demand) -> Layout:
    """The layout that a demand asks for."""
    if isinstance(demand, Lift):
        return demand.layout
    return None if isinstance(demand, Flexible) else demand


class Region:
    """The nodes that a layout reaches from a Transpose, each with its other way to work.

    Args:
        views: The graph.
        start: A Transpose's root: its needs always count.

    Attributes:
        plans: How each node works if it is turned.
        refusals: Why nodes at the border do not.
    """

    def __init__(self, views: Views, start: ir.Value) -> None:
        self.views = views
        self.plans: dict[ir.Node, Plan] = {}
        self.refusals: list[Refusal] = []
        self._roots: dict[ir.Value, None] = {start: None}
        self._followed: set[tuple[ir.Value, tuple[int, ...]]] = set()

    # -- growing ------------------------------------------------------------------------------------------------------

    def grow(self, seeds: Iterable[tuple[ir.Node, At]]) -> None:
        """Follow layouts as far as ops let them pass.

        Args:
            seeds: Where they come in.
        """
        pending = deque(seeds)
        refused: set[tuple[ir.Node, At]] = set()
        while pending and len(self.plans) < MAX_NODES:
            node, at = pending.popleft()
            if node in self.plans or (node, at) in refused:
                continue
            try:
                node_plan = plan(node, at)
                # asked last: to read an embedding takes longer than any plan
                turned = at.moves_last_axis and self.views.is_rotary(node)
                need(not turned, "one op may stand for the rotary embedding as it is", node)
            except Refusal as refusal:
                refused.add((node, at))
                self.refusals.append(refusal.with_traceback(None))  # its frames would hold everything
                continue
            self.plans[node] = node_plan
            pending.extend(self._neighbours(node, node_plan))
        for node, node_plan in self.plans.items():
            for value, demand in zip(node.inputs, node_plan.inputs, strict=True):
                if value is not None and (demand is not None):
                    self._roots[self.views.of(value).root] = None
            self._roots.update(dict.fromkeys(node.outputs))

    def _neighbours(self, node: ir.Node, node_plan: Plan) -> Iterator[tuple[ir.Node, At]]:
        for value, demand in zip(node.inputs, node_plan.inputs, strict=True):
            layout = layout_of(demand)
            if value is None or layout is None or is_constant(value):
                continue
            view = self.views.of(value)
            producer = value.producer()
            if view.perm is None and producer is not None and producer.graph is self.views.graph:
                yield producer, At(True, output_index(producer, value), layout)
            yield from self.users(value, layout)
        for value, layout in zip(node.outputs, node_plan.outputs, strict=True):
            if layout is not None:
                yield from self.users(value, layout)

    def users(self, value: ir.Value, layout: tuple[int, ...]) -> Iterator[tuple[ir.Node, At]]:
        """The nodes of the graph that use a value in a layout, transposes left out; none if that was asked before.

        All nodes that read one value are neighbours: to follow it from each of them would take the square of them.
        """
        if (value, layout) in self._followed:
            return
        self._followed.add((value, layout))
        graph = self.views.graph
        for node, position in value.uses():
            if node.graph is graph and permutation(node, graph) is None:
                yield node, At(False, position, layout)

    def ways_in(self) -> Iterator[tuple[ir.Node, At]]:
        """From where the same region would be reached."""
        for node, node_plan in self.plans.items():
            for position, demand in enumerate(node_plan.inputs):
                layout = layout_of(demand)
                if layout is not None:
                    yield node, At(False, position, layout)
            for position, layout in enumerate(node_plan.outputs):
                if layout is not None:
                    yield node, At(True, position, layout)

    # -- costs --------------------------------------------------------------------------------------------------------

    @property
    def roots(self) -> Collection[ir.Value]:
        """The values whose transposes may change."""
        return self._roots

    def supply(self, root: ir.Value, turned: Collection[ir.Node]) -> Layout:
        """The layout of a root relative to what is there of it when some nodes are turned."""
        producer = root.producer()
        if producer is None or producer not in turned:
            return None
        return self.plans[producer].outputs[output_index(producer, root)]

    def demand(self, port: Port, turned: Collection[ir.Node]) -> Layout | Flexible:
        """The layout in which a need wants a root when some nodes are turned."""
        if port.node is not None and port.node.graph is self.views.graph:
            if port.node in turned:
                demand = self.plans[port.node].inputs[port.position]
                if isinstance(demand, Flexible):
                    return demand
                return demanded_layout(port.perm, layout_of(demand))
            if port.position in flexible_inputs(port.node):
                return Flexible()
        return inverse(port.perm)

    def demanded(self, root: ir.Value, turned: Collection[ir.Node]) -> dict[Layout, None]:
        """The layouts in which a root is wanted."""
        layouts: dict[Layout, None] = {}
        for port in self.views.ports(root):
            layout = self.demand(port, turned)
            if not isinstance(layout, Flexible):
                layouts[layout] = None
        return layouts

    def cost(self, turned: Collection[ir.Node]) -> Cost:
        """What all transposes around the region cost when some nodes are turned.

        Through Reshapes alone, ONNX Runtime merges transposes itself when it loads a model, single elements or not;
        passes of level 3 take such a one apart again so that it does not.
        """
        is_merged = all(is_op(node, *RESHAPING) for node in turned)
        count = nbytes = weight = 0
        for root in self._roots:
            if is_constant(root):
                continue
            supplied = self.supply(root, turned)
            missing = [layout for layout in self.demanded(root, turned) if layout != supplied]
            count += len(missing)
            nbytes += len(missing) * self.views.nbytes(root)
            if is_merged:
                weight += len(missing) * self.views.nbytes(root)
            else:
                weight += sum(self.views.weight(root, supplied, layout) for layout in missing)
        return Cost(count, nbytes, weight + sum(self.plans[node].cost for node in turned))

    def present_cost(self) -> Cost:
        """What the transposes that are there cost."""
        return self.views.cost([node for root in self._roots for node in self.views.transposes(root)])

    # -- the choice ---------------------------------------------------------------------------------------------------

    def best(self, overhead: int = OVERHEAD) -> frozenset[ir.Node]:
        """The nodes to turn so that transposes cost least.

        Args:
            overhead: What each Transpose costs besides its bytes.
        """
        if not self.plans:
            return frozenset()
        network = Network()
        vertices = {node: network.vertex() for node in self.plans}
        for node, found in self.plans.items():
            network.arc(vertices[node], network.SINK, found.cost + 1)
        for root in self._roots:
            if not is_constant(root):
                self._charge(network, vertices, root, overhead)
        side = network.source_side()
        if side is None:
            self.refusals.insert(0, Refusal("too many nodes around it depend on one another"))
            return frozenset()
        return frozenset(node for node, vertex in vertices.items() if vertex in side)

    def _charge(self, network: Network, vertices: dict[ir.Node, int], root: ir.Value, overhead: int) -> None:
        """Charge the transposes of a root to whoever makes them needed."""
        always: dict[Layout, None] = {}
        plain: dict[Layout, dict[int, None]] = {}
        turned: dict[Layout, dict[int, None]] = {}
        for port in self.views.ports(root):
            if port.node is None or port.node not in self.plans or port.node.graph is not self.views.graph:
                layout = self.demand(port, ())
                if not isinstance(layout, Flexible):
                    always[layout] = None
                continue
            for into, members in ((plain, ()), (turned, (port.node,))):
                layout = self.demand(port, members)
                if not isinstance(layout, Flexible):
                    into.setdefault(layout, {})[vertices[port.node]] = None
        producer = root.producer()
        own = vertices.get(producer) if producer is not None else None
        other = None
        if own is not None and producer is not None:
            other = self.plans[producer].outputs[output_index(producer, root)]
        for layout in {**always, **plain, **turned}:
            if other is None:  # always as it is
                if layout is None:
                    continue
                payer = reverse_payer = None
            else:
                assert own is not None
                payer = own if layout is None else None  # pays if it is turned
                reverse_payer = own if layout == other else None  # pays if it is not
            cost = overhead + max(self.views.weight(root, has, layout) for has in (None, other) if has != layout)
            self._charge_layout(
                network, layout in always, plain.get(layout, {}), turned.get(layout, {}), payer, reverse_payer, cost
            )

    @staticmethod
    def _charge_layout(
        network: Network,
        always: bool,
        plain: Collection[int],
        turned: Collection[int],
        payer: int | None,
        reverse_payer: int | None,
        cost: int,
    ) -> None:
        """Charge one Transpose: if somebody demands it, and `payer` is turned or `reverse_payer` is not."""
        source, sink = network.SOURCE, network.SINK
        if payer is not None:
            if always:
                network.arc(payer, sink, cost)
                return
            if plain:
                _any(network, payer, plain, cost)
            if turned:
                _any(network, sink, turned, cost, turned=True)
        elif reverse_payer is not None:
            if always or plain:
                network.arc(source, reverse_payer, cost)
            elif turned:
                _any(network, reverse_payer, turned, cost, turned=True)
        elif not always:
            if plain:
                _any(network, source, plain, cost)
            if turned:
                _any(network, sink, turned, cost, turned=True)


def _any(network: Network, payer: int, vertices: Collection[int], cost: int, *, turned: bool = False) -> None:
    """Charge once if the payer is on the source's side and any of some vertices is not; turned, the other way round."""

    def arc(one: int, other: int, cost: int) -> None:
        network.arc(*((other, one) if turned else (one, other)), cost)

    if len(vertices) == 1:
        (only,) = vertices
        arc(payer, only, cost)
        return
    gate = network.vertex()
    arc(payer, gate, cost)
    for vertex in vertices:
        arc(gate, vertex, UNBOUNDED)


def demanded_layout(perm: Layout, layout: Layout) -> Layout:
    """The layout of a root that gives ``u``: ``value = Transpose(u, layout)``, ``value = Transpose(root, perm)``."""
    return inverse(compose(perm, inverse(layout)))


def output_index(node: ir.Node, value: ir.Value) -> int:
    """Which output of a node a value is."""
    return node.outputs.index(value)
