"""Which units compute in 16 bits: the division of a model that costs least in Casts and in work left in float32.

A Cast is paid once for a value and a direction, however many read it: as a launch and its elements. A light node in
float32 that could be of 16 bits costs less than a Cast, so a few of them between nodes of float32 stay there; heavy
ones are of 16 bits wherever they can. The cheapest division is a minimum cut, with float32 on the source's side.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortopt.half_precision.units import Unit, Units, Use, elements
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


__all__ = ["Division"]
