"""Which units compute in 16 bits: the cheapest division of a model; and masks, as 16 bits have them.

A Cast is paid once for a value and a direction, however many read it: as a launch and its elements. A light node in
float32 that could be of 16 bits costs less than a Cast, so a few of them between nodes of float32 stay there; heavy
ones are of 16 bits wherever they can. The cheapest division is a minimum cut, with float32 on the source's side.

A mask of -3.4e38 is -inf in float16; where a whole row is masked, Softmax then gives NaN. So such numbers become the
largest ones that can still be added to a score. That concerns constants that are of 16 bits themselves, and those from
which something is computed in float32 that is cast to 16 bits afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.graph import scope
from ortopt.half_precision.formats import Fit, Magnitudes
from ortopt.half_precision.units import Unit, Units, Use, elements
from ortopt.semantics.op_traits import MOVING
from ortopt.transpose.min_cut import UNBOUNDED, Network

_LAUNCH: Final = 1 << 20
"""What a Cast costs beside its elements, in elements: the time of a launch moves some megabytes."""

_PER_ELEMENT: Final = 3
"""Six bytes that a Cast moves for an element, against the two that 16 bits save where it is read or written."""


class Division:
    """Which units of a model are of 16 bits.

    Attributes:
        half: The units of 16 bits.
        units: All units.
        producer: The unit of each value.
        readers: What reads each value, with its unit.
    """

    def __init__(self, units: Units) -> None:
        self.units = units
        self.producer: dict[ir.Value, Unit] = {value: unit for unit in units.all for value in unit.values}
        self.readers: dict[ir.Value, list[tuple[Use, Unit]]] = {}
        for unit in units.all:
            for use in unit.uses:
                self.readers.setdefault(use.value, []).append((use, unit))
        self.half = self._cut()

    def _cut(self) -> frozenset[Unit]:
        network = Network()
        vertices = {unit: network.vertex() for unit in self.units.all}
        for unit, vertex in vertices.items():
            if unit.half is False:
                network.arc(Network.SOURCE, vertex, UNBOUNDED)
            elif unit.half or unit.gain:
                network.arc(vertex, Network.SINK, UNBOUNDED if unit.half else unit.gain)
        for value, readers in self.readers.items():
            if value in self.producer:
                self._charge(network, vertices, value, [unit for _, unit in readers])
        side = network.source_side()
        if side is None:  # it would take too long: all that can be of 16 bits is
            return frozenset(unit for unit in self.units.all if unit.half is not False)
        return frozenset(unit for unit, vertex in vertices.items() if vertex not in side)

    def _charge(self, network: Network, vertices: dict[Unit, int], value: ir.Value, readers: list[Unit]) -> None:
        """Charge a Cast of a value in either direction, once."""
        producer = self.producer[value]
        own, others = vertices[producer], {vertices[unit] for unit in readers if unit is not producer}
        cost = elements(value) + (0 if producer.is_constant else _LAUNCH + (_PER_ELEMENT - 1) * elements(value))
        if len(others) == 1:
            (other,) = others
            network.arc(own, other, cost)
            network.arc(other, own, cost)
        elif others:
            down, up = network.vertex(), network.vertex()
            network.arc(own, down, cost)
            network.arc(up, own, cost)
            for other in others:
                network.arc(down, other, UNBOUNDED)
                network.arc(other, up, UNBOUNDED)

    def is_half(self, value: ir.Value) -> bool:
        """Whether a value that a unit gives is of 16 bits."""
        return self.producer[value] in self.half


_FEW: Final = 1 << 16

_CARRIES: Final = MOVING | {"Add", "Concat", "ConstantOfShape", "Mul", "Neg", "Pad", "Sub", "Trilu", "Where"}
"""Ops whose results have large numbers where an operand has: masks are made of them."""


def masks_above(values: Iterable[ir.Value], division: Division) -> Iterator[Use | ir.Node]:
    """Where masks are read, or made by a ConstantOfShape, in float32, that arrive in 16 bits.

    Args:
        values: Values of float32 that are cast to 16 bits.
        division: The division.
    """
    pending = [value for value in values if not division.producer[value].is_constant]
    seen: set[ir.Node] = set()
    while pending:
        node = pending.pop().producer()
        if node is None or node in seen or node.domain or node.op_type not in _CARRIES:
            continue
        seen.add(node)
        if node.op_type == "ConstantOfShape":
            yield node
        for at, value in enumerate(node.inputs):
            if value is None or value not in division.producer or division.is_half(value):
                continue
            if semantics.constant_tensor(value) is None:
                pending.append(value)
            elif division.units.magnitudes.fit(value, node) is Fit.MASK:
                yield Use(node, at)


def masked_values(model: ir.Model, magnitudes: Magnitudes) -> frozenset[ir.Value]:
    """The values that are large in float32 because a mask is in them: in 16 bits the mask is smaller, and they fit.

    Args:
        model: The model in float32.
        magnitudes: The magnitudes of its constants.
    """
    found: set[ir.Value] = set()
    for graph in scope.graphs(model):
        for node in graph:
            if node.domain or node.op_type not in _CARRIES:
                continue
            fill = node.attributes.get("value") if node.op_type == "ConstantOfShape" else None
            is_filled = fill is not None and not fill.is_ref() and magnitudes.fit_of(fill.as_tensor()) is Fit.MASK
            operands = [value for value in node.inputs if value is not None]
            if is_filled or any(
                value in found or magnitudes.fit(value, node) is Fit.MASK or _is_infinite(value) for value in operands
            ):
                found.update(node.outputs)
    return frozenset(found)


def _is_infinite(value: ir.Value) -> bool:
    """Whether a value is a constant with infinities: in 16 bits they are the same."""
    tensor = semantics.constant_tensor(value)
    is_small = tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.size <= _FEW
    return tensor is not None and is_small and bool(np.isinf(tensor.numpy()).any())
