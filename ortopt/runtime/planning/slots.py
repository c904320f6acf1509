"""The slots of a plan: a place in a flat list for each value of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import onnx_ir as ir

from ortopt import semantics
from ortopt.errors import InvalidModelError
from ortopt.runtime.values.tensors import tensor_to_ort


class SlotTable:
    """The slots of one graph.

    Args:
        values: The inputs of the graph, and what it takes from graphs around it.

    Attributes:
        template: What the slots hold before a run: constants and defaults, None in the others.
    """

    def __init__(self, values: Iterable[ir.Value]) -> None:
        self.template: list[Any] = []
        self._slots: dict[ir.Value, int] = {}
        for value in values:
            default = _default(value)
            self._slots[value] = self.free(None if default is None else tensor_to_ort(default))

    def __getitem__(self, value: ir.Value) -> int:
        """The slot of a value; that of a constant is made when it is first asked for.

        Raises:
            InvalidModelError: It is no constant, and nothing before has made it.
        """
        slot = self._slots.get(value)
        if slot is None:
            tensor = semantics.constant_tensor(value)
            if tensor is None:
                raise InvalidModelError(f"nobody produces {value.name!r}")
            slot = self._slots[value] = self.free(tensor_to_ort(tensor))
        return slot

    def add(self, value: ir.Value) -> int:
        """A new slot for the result of a step."""
        slot = self._slots[value] = self.free()
        return slot

    def free(self, content: Any = None) -> int:
        """A new slot that no value of the graph has."""
        self.template.append(content)
        return len(self.template) - 1

    def items(self) -> Iterator[tuple[ir.Value, int]]:
        """All values that have a slot."""
        return iter(self._slots.items())

    def constants(self) -> set[int]:
        """The slots that hold something before a run."""
        return {slot for slot, content in enumerate(self.template) if content is not None}


def _default(value: ir.Value) -> ir.TensorProtocol | None:
    """The default of an input: its initializer."""
    return value.const_value if value.is_graph_input() and value.is_initializer() else None
