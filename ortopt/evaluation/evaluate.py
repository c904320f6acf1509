"""Constants computed ahead of time, safely; and the one way in which ortopt makes sessions of ONNX Runtime.

`evaluate` computes small integer and shape arithmetic in numpy (`ortopt.evaluation.numpy_kernels`) and the rest in few
sessions of ONNX Runtime. Models are untrusted, and ONNX Runtime can be killed by them (a Conv with stride 0 is a
SIGFPE), be kept busy for ever (a Loop) or asked for terabytes (an Expand):

- ops that are known to be safe run in this process, their results' sizes known from shape inference beforehand;
- everything else runs in a child process (`ortopt.evaluation.child`) under limits of time and memory;
- what fails is found by bisection and left out. Sessions, children and seconds are bounded for each call.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis import kernels
from ortopt.analysis.providers import CPU, check_distributions, usable
from ortopt.cancellation import BETWEEN_LOOKS, NEVER, CancellationToken
from ortopt.errors import OptimizationCancelled, UsageError
from ortopt.evaluation.child import Raw, results, run_session, save_array
from ortopt.evaluation.numpy_kernels import (
    KERNELS,
    LAZY_BYTES,
    ONLY_HERE,
    RESHAPES,
    Array,
    Call,
    ElsewhereError,
    HazardError,
    Operand,
    cast,
    cast_target,
    check_signature,
    compute,
    permutation,
    reshaped_dims,
    tensor_of,
)
from ortopt.semantics import strings_of
from ortopt.semantics.op_traits import SAFE_TO_EVALUATE
from ortopt.serialization.scan import count_nodes
from ortopt.system import memory

if TYPE_CHECKING:
    import onnxruntime

BIG_GRAPH: Final = 2_000
"""From this many nodes on, ORT's memory planner (quadratic) is turned off."""

DEFAULT_LIMIT_BYTES: Final = 1 << 30
DEFAULT_TIMEOUT: Final = 10.0
_WORTH_A_RUN: Final = 0.01  # seconds

_MAX_SESSIONS = 64
_MAX_CHILDREN = 16
_MODULE = "ortopt.evaluation.child"
_CHILD_MEMORY = 8 << 30
_STRING = 64  # bytes that a string is taken for
_SHARES = 8  # no value is larger than this part of the memory that there may be
_INLINE_BYTES = 4096  # shape inference reads the contents of what is inside the model
_IR_VERSION = 10
_NUMPY_DTYPES = frozenset(
    ir.DataType.from_numpy(np.dtype(code))
    for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
)

_BOUNDED_BY_INPUT = frozenset({"NonZero", "Compress", "Unique"})  # 8 bytes times the rank for each element at most


def evaluate(
    nodes: Sequence[ir.Node],
    wanted: Iterable[ir.Value],
    *,
    opset_imports: Mapping[str, int],
    is_random: Callable[[ir.Node], bool],
    functions: Iterable[ir.Function] = (),
    limit_bytes: int = DEFAULT_LIMIT_BYTES,
    timeout: float = DEFAULT_TIMEOUT,
    spent: Callable[[float], None] | None = None,
    token: CancellationToken = NEVER,
) -> dict[ir.Value, ir.TensorProtocol]:
    """Compute values from constants.

    A constant is a value with a ``const_value`` that is no graph input, or the output of a Constant node. Nothing is
    changed in the graph. What cannot or must not be computed is left out, without an error.

    Args:
        nodes: Nodes in topological order; those that ``wanted`` does not need are ignored.
        wanted: The values to compute.
        opset_imports: The opsets that hold where the nodes stand.
        is_random: Whether a node (also one in a subgraph or a function) must never be evaluated.
        functions: The model's functions, for nodes that call them.
        limit_bytes: No value larger than this is computed, wanted or in between.
        timeout: Seconds for all of what is not known to be safe; none of it is computed if there are none.
        spent: Told how many of these seconds it took.
        token: Cancellation token.

    Returns:
        Tensors of exact dtype. Those of moved, cast or reshaped large weights are lazy (`ir.LazyTensor`).

    Raises:
        OptimizationCancelled: If the token was set; what runs for it meanwhile is ended.
    """
    bound = memory.limit()
    if bound is not None:
        limit_bytes = min(limit_bytes, bound // _SHARES)
    evaluation = _Evaluation(opset_imports, is_random, tuple(functions), limit_bytes, timeout, token)
    try:
        return evaluation.run(nodes, tuple(wanted))
    finally:
        if spent is not None:
            spent(evaluation.unsafe_seconds)


class _Evaluation:
    """One call of `evaluate`: what is known so far, and what may still be spent."""

    def __init__(
        self,
        opset_imports: Mapping[str, int],
        is_random: Callable[[ir.Node], bool],
        functions: tuple[ir.Function, ...],
        limit_bytes: int,
        timeout: float,
        token: CancellationToken,
    ) -> None:
        self._token = token
        self._opsets = dict(opset_imports)
        self._opset = self._opsets.get("", self._opsets.get("ai.onnx", 1))
        self._is_random = is_random
        self._functions = {function.identifier(): function for function in functions}
        self._limit = limit_bytes
        self._seconds = timeout
        self.unsafe_seconds = 0.0
        self._sessions = _MAX_SESSIONS
        self._children = _MAX_CHILDREN
        self._known: dict[ir.Value, Operand] = {}
        self._unsafe: set[ir.Node] = set()
        self._hopeless: set[ir.Node] = set()
        self._wanted: frozenset[ir.Value] = frozenset()

    def run(self, nodes: Sequence[ir.Node], wanted: tuple[ir.Value, ...]) -> dict[ir.Value, ir.TensorProtocol]:
        self._wanted = frozenset(wanted)
        todo = self._sweep(self._needed(nodes))
        while todo:
            batch = self._safe_batch(todo)
            todo = [node for node in todo if node not in self._hopeless]
            if batch:
                self._run(batch, todo, self._here)
            else:
                batch = self._ready_together(todo)
                self._run_children(batch, todo)
            if not batch:
                break
            gone = set(batch)
            todo = self._sweep([node for node in todo if node not in gone])
        found = {}
        for value in wanted:
            operand = self._operand(value)
            if operand is not None:
                found[value] = operand.tensor if operand.tensor is not None else tensor_of(operand.array)
        return found

    # What is there to do

    def _needed(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """The nodes that lead to what is wanted, apart from those that must not be evaluated."""
        needed = set(self._wanted)
        kept = []
        for node in self._token.checked(reversed(nodes)):
            if not any(output in needed for output in node.outputs) or self._refused(node):
                continue
            kept.append(node)
            needed.update(value for value in node.inputs if value is not None)
            needed.update(_captured(node))
        return kept[::-1]

    def _refused(self, node: ir.Node) -> bool:
        return any(attribute.is_ref() for attribute in node.attributes.values()) or any(
            self._is_random(inner) for inner in self._inside(node, set())
        )

    def _inside(self, node: ir.Node, seen: set[ir.OperatorIdentifier]) -> Iterator[ir.Node]:
        """The node, those of its subgraphs, and those of the functions that any of them calls."""
        yield node
        for attribute in node.attributes.values():
            for graph in _graphs(attribute):
                for inner in graph:
                    yield from self._inside(inner, seen)
        identifier = node.op_identifier()
        if identifier in self._functions and identifier not in seen:
            seen.add(identifier)
            for inner in self._functions[identifier]:
                yield from self._inside(inner, seen)

    def _operand(self, value: ir.Value) -> Operand | None:
        operand = self._known.get(value)
        if operand is None and value.const_value is not None and not value.is_graph_input():
            operand = self._known[value] = Operand(value.const_value)
        return operand

    def _ready(self, node: ir.Node) -> bool:
        return all(value is None or self._operand(value) is not None for value in node.inputs) and all(
            self._operand(value) is not None for value in _captured(node)
        )

    # Numpy

    def _sweep(self, todo: list[ir.Node]) -> list[ir.Node]:
        """Compute in numpy what can be; what is left is for ONNX Runtime, now or later."""
        left = []
        for node in self._token.checked(todo):
            if node.domain not in ("", "ai.onnx") or (node.op_type not in KERNELS and node.op_type != "Constant"):
                left.append(node)
                continue
            operands = [None if value is None else self._operand(value) for value in node.inputs]
            if any(operand is None and value is not None for operand, value in zip(operands, node.inputs, strict=True)):
                left.append(node)
                continue
            call = Call(node, operands, self._opset, self._limit)
            try:
                results = _constant(node) or on_demand(call) or [Operand(array) for array in compute(call)]
            except ElsewhereError:
                left.append(node)
            except HazardError:
                continue
            else:
                self._known.update(zip(node.outputs, results, strict=False))
        return left

    # ONNX Runtime in this process

    def _safe_batch(self, todo: list[ir.Node]) -> list[ir.Node]:
        """As many nodes as can run here together, their results' sizes known and allowed."""
        pending: set[ir.Value] = set()
        candidates = []
        for node in self._token.checked(todo):
            if node.op_type not in SAFE_TO_EVALUATE or node.domain not in ("", "ai.onnx") or node in self._unsafe:
                continue
            if all(value is None or value in pending or self._operand(value) is not None for value in node.inputs):
                candidates.append(node)
                pending.update(node.outputs)
        if not candidates:
            return []
        return self._of_known_size(candidates)

    def _of_known_size(self, candidates: list[ir.Node]) -> list[ir.Node]:
        types = _Batch(candidates, self._opsets, self._functions, self._operand).infer()
        kept: list[ir.Node] = []
        produced: set[ir.Value] = set()
        for node in self._token.checked(candidates):
            inputs = [value for value in node.inputs if value is not None]
            if any(value not in produced and self._operand(value) is None for value in inputs):
                continue
            if self._hopeless_with(node, types):
                self._hopeless.add(node)
            elif self._can_run_here(node, types):
                kept.append(node)
                produced.update(node.outputs)
            elif not produced.intersection(inputs):
                self._unsafe.add(node)
        return kept

    def _hopeless_with(self, node: ir.Node, types: Mapping[ir.Value, _Inferred]) -> bool:
        """Whether ONNX Runtime has no kernel for these types, or the result is too large: no child need try."""
        outputs = [types.get(value) for value in node.outputs if value.name != ""]
        if any(one is not None and one.shape is not None and one.nbytes > self._limit for one in outputs):
            return True
        inputs = [None if value is None else _type_string(types.get(value)) for value in node.inputs]
        results = [None if value.name == "" else _type_string(types.get(value)) for value in node.outputs]
        if "?" in inputs or "?" in results:
            return False
        return kernels.support_of(CPU, node, self._opset, inputs, results) is None

    def _can_run_here(self, node: ir.Node, types: Mapping[ir.Value, _Inferred]) -> bool:
        inputs = [types.get(value) for value in node.inputs if value is not None]
        outputs = [types.get(value) for value in node.outputs if value.name != ""]
        for one in inputs:
            # Zero elements: a mean of integers divides by their number.
            if one is None or one.shape is None or 0 in one.shape:
                return False
        if inputs and inputs[0] is not None and (node.op_type, _kind(inputs[0].dtype)) in ONLY_HERE:
            return False
        if any(one is not None and one.dtype == ir.DataType.STRING for one in inputs) and self._has_long_strings(node):
            return False
        block: int = node.attributes.get_int("block_size", 0)
        if block < 0:
            return False
        if node.op_type in _BOUNDED_BY_INPUT:
            return all(one is not None and one.nbytes * 16 <= self._limit for one in inputs)
        return all(one is not None and one.shape is not None for one in outputs)

    def _has_long_strings(self, node: ir.Node) -> bool:
        """Whether a string is longer than it is counted: sizes of results would be underestimated."""
        operands = (self._operand(value) for value in node.inputs if value is not None)
        tensors = (one.tensor for one in operands if one is not None and one.dtype == ir.DataType.STRING)
        return any(len(text) > _STRING for one in tensors if one is not None for text in strings_of(one).reshape(-1))

    def _here(self, batch: _Batch, fetch: Sequence[ir.Value]) -> dict[ir.Value, ir.TensorProtocol]:
        if self._sessions <= 0:
            raise HazardError("too many sessions")
        self._sessions -= 1
        seconds = self._at_most(DEFAULT_TIMEOUT)
        results = run_model(
            batch.model(fetch), batch.feeds, [batch.name(value) for value in fetch], seconds, self._token
        )
        return {value: result for value, result in zip(fetch, results, strict=True) if result is not None}

    # ONNX Runtime in a child process

    def _ready_together(self, todo: list[ir.Node]) -> list[ir.Node]:
        """The nodes that can run now, and those that wait for no more than their lists, which leave no session."""
        lists: set[ir.Value] = set()
        found = []
        for node in todo:
            alone = _captured_or_graphs(node)
            if not self._ready(node) and (
                alone or any(v is not None and v not in lists and self._operand(v) is None for v in node.inputs)
            ):
                continue
            found.append(node)
            if not alone:
                lists.update(v for v in node.outputs if v.type is not None and not isinstance(v.type, ir.TensorType))
        return found

    def _run_children(self, ready: list[ir.Node], todo: list[ir.Node]) -> None:
        """Nodes with subgraphs go alone: the names inside must stay as they are."""
        together = [node for node in ready if not _captured_or_graphs(node)]
        if together:
            self._run(together, todo, self._child)
        for node in ready:
            if _captured_or_graphs(node):
                self._run([node], todo, self._child)

    def _child(self, batch: _Batch, fetch: Sequence[ir.Value]) -> dict[ir.Value, ir.TensorProtocol]:
        if self._children <= 0 or self._seconds <= 0:
            raise HazardError("too many child processes")
        self._children -= 1
        start = time.monotonic()
        try:
            model = batch.model(fetch)
            results = _run_in_child(
                model,
                batch.feeds,
                [batch.name(value) for value in fetch],
                self._limit,
                self._at_most(self._seconds),
                self._token,
            )
        except OSError as error:
            raise HazardError(f"there is no room for a child process: {error}") from error
        finally:
            self._seconds -= time.monotonic() - start
            self.unsafe_seconds += time.monotonic() - start
        return {value: result for value, result in zip(fetch, results, strict=True) if result is not None}

    # Either

    def _at_most(self, seconds: float) -> float:
        """So many seconds, or what is left of all.

        Raises:
            HazardError: There are none.
        """
        left = self._token.left
        if left is not None and left < _WORTH_A_RUN:
            raise HazardError("there is no time left")
        return seconds if left is None else min(seconds, left)

    def _run(
        self,
        nodes: list[ir.Node],
        todo: list[ir.Node],
        runner: Callable[[_Batch, Sequence[ir.Value]], dict[ir.Value, ir.TensorProtocol]],
    ) -> None:
        """Run nodes together; where that fails, halves of them, down to those that fail alone."""
        ready = []
        produced: set[ir.Value] = set()
        for node in self._token.checked(nodes):
            values = [*(value for value in node.inputs if value is not None), *_captured(node)]
            if all(value in produced or self._operand(value) is not None for value in values):
                ready.append(node)
                produced.update(node.outputs)
        fetch = self._fetched(ready, todo)
        if not fetch:
            return
        try:
            self._keep(runner(_Batch(ready, self._opsets, self._functions, self._operand), fetch))
        except OptimizationCancelled:
            raise
        except Exception:  # onnxruntime raises a class of its own for each status; all mean "not this"
            self._token.check()  # it may have ended what failed
            if len(ready) > 1:
                middle = len(ready) // 2
                self._run(ready[:middle], todo, runner)
                self._run(ready[middle:], todo, runner)

    def _fetched(self, batch: list[ir.Node], todo: list[ir.Node]) -> list[ir.Value]:
        """The results of the batch that are wanted, or that what comes later needs."""
        inside = set(batch)
        produced = {output for node in batch for output in node.outputs if output.name != ""}
        needed = {value for node in todo if node not in inside for value in (*node.inputs, *_captured(node))}
        return [
            output
            for node in batch
            for output in node.outputs
            if output in produced and (output in self._wanted or output in needed)
        ]

    def _keep(self, results: Mapping[ir.Value, ir.TensorProtocol]) -> None:
        for value, tensor in results.items():
            if tensor.nbytes <= self._limit:
                self._known[value] = Operand(tensor)


def _kind(dtype: ir.DataType) -> str:
    if not dtype.is_integer():
        return "f"
    return "i" if dtype.is_signed() else "u"


def _graphs(attribute: ir.Attr) -> Sequence[ir.Graph]:
    if attribute.type == ir.AttributeType.GRAPH:
        return (attribute.as_graph(),)
    return attribute.as_graphs() if attribute.type == ir.AttributeType.GRAPHS else ()


def _captured_or_graphs(node: ir.Node) -> bool:
    return any(
        attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for attribute in node.attributes.values()
    )


def _captured(node: ir.Node) -> list[ir.Value]:
    """The outer values that a node's subgraphs use."""
    if not node.attributes or not _captured_or_graphs(node):
        return []
    inside: set[ir.Value] = set()
    used: dict[ir.Value, None] = {}

    def walk(graph: ir.Graph) -> None:
        inside.update(graph.inputs)
        inside.update(graph.initializers.values())
        for inner in graph:
            used.update(dict.fromkeys(value for value in inner.inputs if value is not None))
            inside.update(inner.outputs)
            for attribute in inner.attributes.values():
                for nested in _graphs(attribute):
                    walk(nested)
        used.update(dict.fromkeys(value for value in graph.outputs if value is not None))

    for attribute in node.attributes.values():
        for graph in _graphs(attribute):
            walk(graph)
    return [value for value in used if value not in inside]


def _constant(node: ir.Node) -> list[Operand] | None:
    """What a Constant node holds; None for any other node."""
    if node.op_type != "Constant":
        return None
    content = semantics.constant_content(node)
    if content is None:
        raise HazardError("a Constant that is no tensor")
    return [Operand(content)]


def on_demand(call: Call, from_bytes: int = LAZY_BYTES) -> list[Operand] | None:
    """Large weights that are moved or cast: known by shape and dtype, computed when somebody reads them.

    Args:
        call: What would be computed.
        from_bytes: Operands and results smaller than this are none of its business.

    Raises:
        ElsewhereError: It is not computed here.
        HazardError: It must not be computed.
    """
    name = call.node.op_type
    if name not in RESHAPES and name not in ("Transpose", "Cast", "CastLike"):
        return None
    check_signature(call)
    operand = call.operand(0)
    if operand.nbytes < from_bytes or operand.dtype == ir.DataType.STRING:
        return None
    source = operand.tensor if operand.tensor is not None else tensor_of(operand.array)
    if name in RESHAPES:
        shape = reshaped_dims(call)
        return [_lazy_tensor(lambda: tensor_of(source.numpy().reshape(shape)), source.dtype, shape)]
    if name == "Transpose":
        axes = permutation(call)
        shape = tuple(operand.shape[axis] for axis in axes)
        return [
            _lazy_tensor(lambda: tensor_of(np.ascontiguousarray(source.numpy().transpose(axes))), source.dtype, shape)
        ]
    target = cast_target(call)
    call.allow(operand.shape, target.itemsize)
    if target.itemsize * math.prod(operand.shape) < from_bytes or not _casts_whatever_it_holds(operand, target):
        return None
    dtype = ir.DataType.from_numpy(target)
    return [_lazy_tensor(lambda: tensor_of(cast(source.numpy(), target)), dtype, operand.shape)]


def _lazy_tensor(make: Callable[[], ir.TensorProtocol], dtype: ir.DataType, shape: Sequence[int]) -> Operand:
    return Operand(ir.LazyTensor(make, dtype, ir.Shape(shape)))


def _casts_whatever_it_holds(operand: Operand, target: np.dtype[Any]) -> bool:
    """Whether `cast` will do it; asked on a large weight, so that dtypes decide where they can."""
    source = np.dtype(operand.dtype.numpy())
    if source.kind in "biu" and target.kind in "biuf" and target != np.float16:
        return True
    try:
        cast(operand.array, target)
    except ElsewhereError:
        return False
    return True


class _Inferred:
    """A value's dtype and, where they are known, its dimensions."""

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: ir.DataType, shape: tuple[int, ...] | None) -> None:
        self.dtype = dtype
        self.shape = shape

    @property
    def nbytes(self) -> int:
        """Bytes; a string counts as `_STRING`."""
        size = float(_STRING) if self.dtype == ir.DataType.STRING else self.dtype.itemsize
        return math.ceil(math.prod(self.shape or ()) * size)


def _type_string(inferred: _Inferred | None) -> str:
    return "?" if inferred is None else kernels.type_string(ir.TensorType(inferred.dtype))


class _Batch:
    """Nodes as a model whose inputs are constants: small ones inside, large ones fed."""

    def __init__(
        self,
        nodes: Sequence[ir.Node],
        opsets: Mapping[str, int],
        functions: Mapping[ir.OperatorIdentifier, ir.Function],
        operand: Callable[[ir.Value], Operand | None],
    ) -> None:
        self.feeds: dict[str, Array] = {}
        self._keep_names = any(_captured_or_graphs(node) for node in nodes)
        self._names: dict[ir.Value, str] = {}
        self._proto = onnx.ModelProto(ir_version=_IR_VERSION)
        graph = self._proto.graph
        graph.name = "constants"
        for domain, version in opsets.items():
            self._proto.opset_import.add(domain="" if domain == "ai.onnx" else domain, version=version)
        produced = {output for node in nodes for output in node.outputs}
        for node in nodes:
            for value in (*node.inputs, *_captured(node)):
                if value is not None and value not in self._names and value not in produced:
                    constant = operand(value)
                    assert constant is not None
                    self._add_constant(self.name(value), constant)
            added = graph.node.add()
            added.CopyFrom(ir.serde.serialize_node(node))
            added.name = ""
            added.input[:] = ["" if value is None else self.name(value) for value in node.inputs]
            added.output[:] = ["" if value.name == "" else self.name(value) for value in node.outputs]
        if any(node.op_identifier() in functions for node in nodes) or (self._keep_names and functions):
            self._add_functions(functions.values())

    def name(self, value: ir.Value) -> str:
        """The value's name in the model: new, since names of several graphs may collide, unless subgraphs use it."""
        found = self._names.get(value)
        if found is not None:
            return found
        name = (value.name or "") if self._keep_names else f"v{len(self._names)}"
        if not name or (self._keep_names and name in self._names.values()):
            raise HazardError("a subgraph uses a value without a name of its own")
        self._names[value] = name
        return name

    def _add_constant(self, name: str, constant: Operand) -> None:
        graph = self._proto.graph
        if constant.nbytes <= _INLINE_BYTES or constant.dtype not in _NUMPY_DTYPES:
            tensor = constant.tensor if constant.tensor is not None else tensor_of(constant.array)
            proto = graph.initializer.add()
            proto.CopyFrom(ir.serde.serialize_tensor(_in_memory(tensor)))
            proto.name = name
            return
        graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info(name, int(constant.dtype), constant.shape))
        self.feeds[name] = constant.array

    def _add_functions(self, functions: Iterable[ir.Function]) -> None:
        imported = {one.domain for one in self._proto.opset_import}
        for function in functions:
            self._proto.functions.add().CopyFrom(ir.serde.serialize_function(function))
            for domain, version in {function.domain: 1, **function.opset_imports}.items():
                if domain not in imported:
                    imported.add(domain)
                    self._proto.opset_import.add(domain=domain, version=version)

    def infer(self) -> dict[ir.Value, _Inferred]:
        """Types and shapes of the constants and of all results, inferred from the constants alone."""
        graph = onnx.shape_inference.infer_shapes(self._proto, data_prop=True).graph
        by_name = {}
        for one in (*graph.input, *graph.value_info):
            if not one.type.HasField("tensor_type") or not one.type.tensor_type.elem_type:
                continue
            tensor = one.type.tensor_type
            dims = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
            known = tensor.HasField("shape") and min(dims, default=0) >= 0
            by_name[one.name] = _Inferred(ir.DataType(tensor.elem_type), tuple(dims) if known else None)
        for one in graph.initializer:
            by_name[one.name] = _Inferred(ir.DataType(one.data_type), tuple(one.dims))
        return {value: by_name[name] for value, name in self._names.items() if name in by_name}

    def model(self, fetch: Sequence[ir.Value]) -> bytes:
        """The serialized model that gives these values."""
        del self._proto.graph.output[:]
        for value in fetch:
            self._proto.graph.output.add(name=self.name(value))
        return bytes(self._proto.SerializeToString())


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """A tensor that is serialized with its contents, wherever these are now."""
    if isinstance(tensor, ir.Tensor | ir.StringTensor | ir.PackedTensor):
        return tensor
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(strings_of(tensor), shape=ir.Shape(Operand(tensor).shape))
    return ir.Tensor(tensor.numpy(), tensor.dtype, shape=ir.Shape(Operand(tensor).shape))


# Sessions


_process_pool: list[tuple[int, int]] = []


def shares_threads() -> bool:
    """Whether every session of this process must use ONNX Runtime's global thread pool: it has been set up."""
    return bool(_process_pool)


def use_one_thread(options: onnxruntime.SessionOptions) -> None:
    """Let a session have no threads of its own; where the process shares a pool, that pool, without a warning."""
    options.use_per_session_threads = not shares_threads()
    if not shares_threads():
        options.intra_op_num_threads = 1


def share_threads(intra: int, inter: int) -> None:
    """Set up ONNX Runtime's global thread pool; from then on every session of the process must use it.

    Args:
        intra: Threads within an op, 0 for as many as there are cores.
        inter: Threads across ops.

    Raises:
        UsageError: It was set up with other sizes: it cannot be resized.
    """
    import onnxruntime

    if not _process_pool:
        onnxruntime.set_global_thread_pool_sizes(intra, inter)
        _process_pool.append((intra, inter))
    elif _process_pool[0] != (intra, inter):
        raise UsageError(
            f"the global thread pool has {_process_pool[0][0]} intra-op and {_process_pool[0][1]} inter-op threads"
            f" already; it cannot be resized to {intra} and {inter}"
        )


def session(
    model: bytes | os.PathLike[str] | str | ir.Model,
    *,
    optimize: bool = False,
    providers: Sequence[str] = (CPU,),
    threads: int | None = None,
) -> onnxruntime.InferenceSession:
    """A session of ONNX Runtime that says nothing on stderr.

    Args:
        model: A path, a serialized model, or a model of less than 2 GB.
        optimize: Whether ORT optimizes the graph itself; otherwise it runs as it is.
        providers: Full names, in order of preference; the CPU provider is always the last resort.
        threads: Threads within an op; None leaves it to ORT.

    Raises:
        UsageError: A provider does not work on this machine.
    """
    for provider in providers:
        works, reason = usable(provider)
        if not works:
            raise UsageError(f"{provider} does not work here: {reason}")
    check_distributions()
    import onnxruntime

    if isinstance(model, ir.Model):
        nodes = sum(1 for _ in model.graph.all_nodes())
        model = bytes(ir.to_proto(model).SerializeToString())
    else:
        nodes = count_nodes(model)
    options = onnxruntime.SessionOptions()
    options.use_per_session_threads = not shares_threads()
    options.log_severity_level = 4
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimize else levels.ORT_DISABLE_ALL
    if nodes > BIG_GRAPH:
        options.enable_mem_reuse = False
        options.enable_mem_pattern = False
    if threads is not None:
        options.intra_op_num_threads = threads
    names = list(dict.fromkeys((*providers, CPU)))
    return onnxruntime.InferenceSession(model if isinstance(model, bytes) else os.fspath(model), options, names)


def run_model(
    model: bytes,
    feeds: Mapping[str, Array],
    fetch: Sequence[str],
    seconds: float,
    token: CancellationToken = NEVER,
) -> list[ir.TensorProtocol | None]:
    """Run a serialized model on the CPU without optimization, for ``seconds`` at most; None for what is no tensor.

    A token that is set ends the run; that raises whatever ONNX Runtime raises.
    """
    small = sum(array.nbytes for array in feeds.values()) < LAZY_BYTES
    made = session(model, threads=1 if small else None)
    return [_tensor(raw) for raw in run_session(made, feeds, fetch, seconds, lambda: token.is_cancelled)]


def _tensor(raw: Raw | None) -> ir.TensorProtocol | None:
    if raw is None:
        return None
    dtype, shape = ir.DataType(raw.dtype), ir.Shape(raw.shape)
    if dtype == ir.DataType.STRING:
        return ir.StringTensor(raw.data, shape=shape)
    if dtype in _NUMPY_DTYPES:
        return ir.Tensor(raw.data, dtype, shape=shape)
    if dtype.bitwidth < 8:
        return ir.PackedTensor(raw.data, dtype, shape=shape)
    return ir.Tensor(raw.data.view(dtype.numpy()).reshape(raw.shape), dtype, shape=shape)


def _run_in_child(
    model: bytes,
    feeds: Mapping[str, Array],
    fetch: Sequence[str],
    limit_bytes: int,
    seconds: float,
    token: CancellationToken,
) -> list[ir.TensorProtocol | None]:
    with tempfile.TemporaryDirectory(prefix="ortopt-") as name:
        folder = Path(name)
        (folder / "model.onnx").write_bytes(model)
        for i, array in enumerate(feeds.values()):
            save_array(folder / f"{i}.npy", array)
        space = _CHILD_MEMORY + 4 * limit_bytes + 4 * sum(array.nbytes for array in feeds.values())
        job = {
            "parent": os.getpid(),
            "feeds": list(feeds),
            "fetch": list(fetch),
            "seconds": seconds,
            "memory": space,
            "data": memory.remaining(),
            "limit": limit_bytes,
        }
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        child = subprocess.Popen(
            [sys.executable, "-m", _MODULE, name],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(path).resolve()) for path in sys.path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with child:
            try:
                _wait(child, seconds, token)
            finally:
                child.kill()  # nobody waits for it any more
        return [_tensor(raw) for raw in results(folder)]


def _wait(child: subprocess.Popen[bytes], seconds: float, token: CancellationToken) -> None:
    """Wait until a process has ended well.

    Raises:
        OptimizationCancelled: If the token was set.
        HazardError: It has not ended in so many seconds, or not well.
    """
    deadline = time.monotonic() + seconds
    while child.returncode is None:
        token.check()
        if time.monotonic() >= deadline:
            raise HazardError("it takes too long")
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(BETWEEN_LOOKS)
    if child.returncode:
        raise HazardError("the child process failed")


__all__ = [
    "BIG_GRAPH",
    "DEFAULT_LIMIT_BYTES",
    "DEFAULT_TIMEOUT",
    "evaluate",
    "run_model",
    "session",
    "share_threads",
    "shares_threads",
    "use_one_thread",
]
