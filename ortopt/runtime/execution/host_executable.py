"""Groups that no provider takes: onnx's reference implementation runs them, with ops of the caller's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from ortopt.runtime.values.conversion import to_numpy
from ortopt.runtime.values.tensors import array_of, own, to_ort

if TYPE_CHECKING:
    import onnxruntime


class HostExecutable:
    """onnx's reference implementation, with users' own ops.

    Args:
        model: A model whose weights are inputs behind the others.
        weights: The weights, in their order.
        ops: Subclasses of ``onnx.reference.op_run.OpRun``; they are given copies of their arguments.
    """

    __slots__ = ("_evaluator", "_inputs", "_weights")

    def __init__(self, model: onnx.ModelProto, weights: Sequence[ir.TensorProtocol], ops: Sequence[type]) -> None:
        from onnx.reference import ReferenceEvaluator

        if model.functions:  # which it would not give the attributes of their calls; those of another opset stay
            from onnx.inliner import inline_local_functions

            model = inline_local_functions(model)
        ops = [_on_copies(op) for op in ops]
        # Given a whole model it would not tell the functions of the callers' ops.
        functions: list[Any] = []
        for function in _callees_first(model.functions):
            functions.append(ReferenceEvaluator(function, functions=list(functions), new_ops=list(ops)))
        opsets = {opset.domain: opset.version for opset in model.opset_import}
        self._evaluator = ReferenceEvaluator(model.graph, opsets=opsets, functions=functions, new_ops=list(ops))
        self._inputs = [value.name for value in model.graph.input]
        self._weights = [array_of(tensor) for tensor in weights]

    def __call__(self, values: list[Any], options: onnxruntime.RunOptions) -> Sequence[Any]:
        """Run the nodes one after the other."""
        arrays = [to_numpy(value) for value in values] + self._weights
        results = self._evaluator.run(None, dict(zip(self._inputs, arrays, strict=True)))
        inputs = {id(part) for array in arrays for part in (array, *(array if isinstance(array, list) else ()))}
        return [to_ort(_apart(value, inputs)) for value in results]


def _on_copies(op: type) -> type:
    """An op of the caller's that works on copies of its arguments, and may write to them.

    They may be the memory of a caller's array, of a weight, or of a value that others still read. The ops of
    ``onnx.reference`` write to none of theirs.
    """

    def run(self: Any, *args: Any, **named: Any) -> Any:
        return op.run(self, *(own(argument) for argument in args), **named)  # type: ignore[attr-defined]

    return type(op.__name__, (op,), {"run": run, "__module__": op.__module__, "__doc__": op.__doc__})


def _apart(value: Any, inputs: set[int]) -> Any:
    """A result that shares memory with no argument, as those of ONNX Runtime; onnx reshapes to views.

    Args:
        value: The result.
        inputs: The ids of the arguments.
    """
    is_new = isinstance(value, np.ndarray) and value.flags.owndata and id(value) not in inputs
    return value if is_new else own(value)


def _callees_first(functions: Iterable[onnx.FunctionProto]) -> list[onnx.FunctionProto]:
    """Functions in an order in which each stands behind those that it calls."""
    by_key = {(function.domain, function.name): function for function in functions}
    ordered: dict[tuple[str, str], onnx.FunctionProto] = {}
    pending = list(reversed(by_key))
    opened: set[tuple[str, str]] = set()
    while pending:
        key = pending[-1]
        called = [callee for callee in _called(by_key[key].node) if callee in by_key and callee not in ordered]
        if key in opened or not called:
            pending.pop()
            ordered[key] = by_key[key]
            continue
        opened.add(key)
        pending.extend(called)
    return list(ordered.values())


def _called(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, str]]:
    for node in nodes:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _called(graph.node)
