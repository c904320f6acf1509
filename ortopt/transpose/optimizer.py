"""Fewer transposes in a graph: region by region, as long as there are fewer and no more bytes go through them."""

from __future__ import annotations

import onnx_ir as ir

from ortopt.context import Context
from ortopt.graph.match import Refusal

# the handlers register themselves
from ortopt.transpose.layout import inverse
from ortopt.transpose.plan import At
from ortopt.transpose.rearrangement import Rearrangement
from ortopt.transpose.region import OVERHEAD, Cost, Region, Views, output_index, permutation

COUNT_FIRST = 1 << 60
"""An overhead that makes one Transpose less worth any number of bytes."""

MAX_ROUNDS = 10


def cost(graph: ir.Graph) -> Cost:
    """What the transposes of a graph cost: the measure that every rewrite lowers.

    Args:
        graph: The graph; those below it count for themselves.
    """
    return Views(graph).cost([node for node in graph if permutation(node, graph) is not None])


class TransposeReducer:
    """Turns the regions of one graph in which transposes then cost less.

    Args:
        graph: The graph.
        context: The way to edit.
    """

    def __init__(self, graph: ir.Graph, context: Context) -> None:
        self._graph = graph
        self._context = context
        self._views = Views(graph)
        self._failed: set[tuple[ir.Node, At]] = set()
        self._reasons: dict[ir.Node, Refusal | str] = {}

    def run(self) -> bool:
        """Turn regions until none is worth it; whether any was."""
        changed = False
        for _ in range(MAX_ROUNDS):
            self._failed.clear()
            self._reasons.clear()
            again = False
            for node in self._context.edit.index.nodes(self._graph, "Transpose"):
                self._context.cancellation.check()  # one region may be large
                if node.graph is self._graph and permutation(node, self._graph) is not None:
                    again |= self._improve(node)
            changed |= again
            if not again:
                break
        for node, reason in self._reasons.items():
            if node.graph is self._graph:
                self._context.refuse(node, reason)
        return changed

    def _improve(self, transpose: ir.Node) -> bool:
        """Turn what is worth it below a Transpose, or above it."""
        value = transpose.outputs[0]
        for below in (True, False):
            region = self._region(value, below=below)
            if region is None:
                continue
            turned = _choice(region)
            if turned is None:
                self._failed.update(region.ways_in())
            if turned is not None:
                return self._commit(transpose, region, turned)
            reason = region.refusals[0] if region.refusals else "no choice of layouts around it has fewer transposes"
            self._reasons.setdefault(transpose, reason)
        return False

    def _region(self, value: ir.Value, *, below: bool) -> Region | None:
        """What a Transpose reaches; None if that has been tried in vain."""
        root, perm = self._views.of(value)
        region = Region(self._views, root)
        seeds: list[tuple[ir.Node, At]] = []
        producer = root.producer()
        if perm is not None and below:
            seeds = list(region.users(value, perm))
        elif perm is not None and producer is not None and producer.graph is self._graph:
            layout = inverse(perm)
            assert layout is not None
            seeds = [(producer, At(True, output_index(producer, root), layout))]
        if not seeds and not below:
            return None
        if seeds and all(seed in self._failed for seed in seeds):
            return None
        region.grow(seeds)
        return region

    def _commit(self, transpose: ir.Node, region: Region, turned: frozenset[ir.Node]) -> bool:
        context = self._context
        rearrangement = Rearrangement(region, turned)
        nodes = (*rearrangement.transposes, *rearrangement.members)

        def change() -> list[ir.Node]:
            made = context.replace(rearrangement.replacements(), transpose, tuple(rearrangement.members))
            context.edit.needs_order(self._graph)  # a Transpose that stays may stand anywhere
            return made

        if not context.attempt(nodes, change, candidate=transpose):
            self._reasons.pop(transpose, None)
            return False
        self._views = Views(self._graph)
        return True


def _choice(region: Region) -> frozenset[ir.Node] | None:
    """The nodes to turn; None where nothing is better: fewer transposes, and no more bytes through them."""
    present = region.present_cost()
    turned = region.best(COUNT_FIRST)
    after = region.cost(turned)
    if after.number >= present.number:
        return None
    if _is_worth_it(after, present):
        return turned
    turned = region.best(OVERHEAD)  # fewer by less, perhaps, but in bytes too
    if _is_worth_it(region.cost(turned), present):
        return turned
    nobody: frozenset[ir.Node] = frozenset()
    return nobody if _is_worth_it(region.cost(nobody), present) else None


def _is_worth_it(after: Cost, present: Cost) -> bool:
    return after.number < present.number and after.nbytes <= present.nbytes and after.total < present.total
