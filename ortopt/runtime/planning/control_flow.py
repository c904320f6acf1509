"""If, Loop and Scan whose bodies hold groups or host nodes: the bodies are plans of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ortopt.graph import facts
from ortopt.runtime.onnxruntime_internals import failure
from ortopt.runtime.planning.execution_plan import ExecutionPlan
from ortopt.runtime.values.containers import scalar, to_numpy
from ortopt.runtime.values.tensors import to_ort

if TYPE_CHECKING:
    import onnxruntime


@dataclass(frozen=True, slots=True)
class Body:
    """A nested graph.

    Attributes:
        plan: What it does.
        captured: Where the values that it takes from outside stand among the values of its node.
    """

    plan: ExecutionPlan
    captured: tuple[int, ...]

    def run(self, arguments: Sequence[Any], values: Sequence[Any], options: onnxruntime.RunOptions) -> list[Any]:
        """Run it once, with the values of its node."""
        return self.plan.run(arguments, [values[i] for i in self.captured], options)


@dataclass(frozen=True, slots=True)
class If:
    """Runs one of two bodies. The values are the condition, then what the bodies capture."""

    then: Body
    otherwise: Body

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run the branch."""
        body = self.then if scalar(values[0], "the condition of an If") else self.otherwise
        return body.run((), values, options)


@dataclass(frozen=True, slots=True)
class Loop:
    """Runs a body again and again.

    The values are the greatest trip count, the condition, what is carried, then what the body captures.

    Attributes:
        body: What is run.
        carried: How many values are carried from one iteration to the next.
        stacked: For each output that is stacked up, its declaration in the body.
        has_count: Whether there is a greatest trip count.
        has_condition: Whether there is a condition at the start.
    """

    body: Body
    carried: int
    stacked: tuple[ir.Value, ...]
    has_count: bool
    has_condition: bool

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run the loop."""
        first = self.has_count + self.has_condition
        most = int(scalar(values[0], "the trip count of a Loop")) if self.has_count else None
        goes_on = bool(scalar(values[self.has_count], "the condition of a Loop")) if self.has_condition else True
        carried = list(values[first : first + self.carried])
        stacks: list[list[Any]] = [[] for _ in self.stacked]
        trip = 0
        while goes_on and (most is None or trip < most):
            arguments = (to_ort(np.array(trip, np.int64)), to_ort(np.array(goes_on)), *carried)
            results = self.body.run(arguments, values, options)
            goes_on = bool(scalar(results[0], "the condition of a Loop"))
            carried = results[1 : 1 + self.carried]
            for stack, value in zip(stacks, results[1 + self.carried :], strict=True):
                stack.append(to_numpy(value))
            trip += 1
        return [*carried, *(_stack(stack, declared, 0) for stack, declared in zip(stacks, self.stacked, strict=True))]


@dataclass(frozen=True, slots=True)
class Scan:
    """Runs a body over the slices of its inputs. The values are the states, what is scanned, what the body captures.

    Attributes:
        body: What is run.
        states: How many values are carried from one iteration to the next.
        scanned: For each input that is scanned: its axis, and whether it is scanned backwards.
        stacked: For each output that is stacked up: its declaration, its axis, and whether it is stacked backwards.
    """

    body: Body
    states: int
    scanned: tuple[tuple[int, bool], ...]
    stacked: tuple[tuple[ir.Value, int, bool], ...]

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run the scan."""
        carried = list(values[: self.states])
        slices = []
        for value, (axis, backwards) in zip(values[self.states :], self.scanned, strict=False):
            moved = np.moveaxis(np.asarray(to_numpy(value)), axis, 0)
            slices.append(moved[::-1] if backwards else moved)
        lengths = {len(scanned) for scanned in slices}
        if len(lengths) > 1:
            raise failure(f"the inputs of a Scan have different lengths: {sorted(lengths)}")
        stacks: list[list[Any]] = [[] for _ in self.stacked]
        for i in range(lengths.pop() if lengths else 0):
            arguments = (*carried, *(to_ort(np.array(scanned[i])) for scanned in slices))
            results = self.body.run(arguments, values, options)
            carried = results[: self.states]
            for stack, value in zip(stacks, results[self.states :], strict=True):
                stack.append(to_numpy(value))
        for stack, (_, _, backwards) in zip(stacks, self.stacked, strict=True):
            if backwards:
                stack.reverse()
        return [
            *carried,
            *(_stack(stack, declared, axis) for stack, (declared, axis, _) in zip(stacks, self.stacked, strict=True)),
        ]


def _stack(arrays: list[Any], declared: ir.Value, axis: int) -> Any:
    """One tensor of all iterations' results; of none, as far as the body tells what it would be."""
    if arrays:
        return to_ort(np.stack(arrays, axis))
    known = facts.dims_of(declared) or ()
    claimed = facts.claim_of(declared) or known
    known = known or claimed
    dims = [next((dim for dim in both if isinstance(dim, int)), 0) for both in zip(known, claimed, strict=True)]
    place = axis if axis >= 0 else axis + len(dims) + 1
    dims.insert(place, 0)
    return to_ort(np.zeros(dims, (declared.dtype or ir.DataType.FLOAT).numpy()))
