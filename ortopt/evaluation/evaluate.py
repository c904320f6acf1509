"""Constants computed ahead of time, safely.

`evaluate` computes small integer and shape arithmetic in numpy (`ortopt.evaluation.numpy_kernels`) and the rest in few
sessions of ONNX Runtime. Models are untrusted, and ONNX Runtime can be killed by them (a Conv with stride 0 is a
SIGFPE), kept busy for ever (a Loop) or asked for terabytes (an Expand):

- ops that are known to be safe run in this process, their results' sizes known from shape inference beforehand;
- everything else runs in a child process (`ortopt.evaluation.child`) under limits of time and memory;
- what fails is found by bisection and left out. Sessions, children and seconds are bounded for each call.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.analysis import kernels
from ortopt.analysis.providers import CPU, unusable_runtime
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import OptimizationCancelled
from ortopt.evaluation.batch import STRING_BYTES, Batch, Inferred, has_subgraphs
from ortopt.evaluation.call import Call, HazardError, Operand, UnsupportedHereError, check_signature
from ortopt.evaluation.execution import run_in_child, run_model
from ortopt.evaluation.numpy_kernels import (
    KERNELS,
    LAZY_BYTES,
    ONLY_HERE,
    RESHAPES,
    cast,
    cast_target,
    compute,
    permutation,
    reshaped_dims,
    tensor_of,
)
from ortopt.graph import scope
from ortopt.semantics import strings_of
from ortopt.semantics.op_traits import SAFE_TO_EVALUATE
from ortopt.system import memory


def on_demand(call: Call, from_bytes: int = LAZY_BYTES) -> list[Operand] | None:
    """Large weights that are moved or cast: known by shape and dtype, computed when they are read.

    Args:
        call: What would be computed.
        from_bytes: Operands and results that are smaller are computed at once.

    Raises:
        UnsupportedHereError: It is not computed here.
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


def _lazy_tensor(compute: Callable[[], ir.TensorProtocol], dtype: ir.DataType, shape: Sequence[int]) -> Operand:
    return Operand(ir.LazyTensor(compute, dtype, ir.Shape(shape)))


def _casts_whatever_it_holds(operand: Operand, target: np.dtype[Any]) -> bool:
    """Whether `cast` will do it; asked on a large weight, so that dtypes decide where they can."""
    source = np.dtype(operand.dtype.numpy())
    if source.kind in "biu" and target.kind in "biuf" and target != np.float16:
        return True
    try:
        cast(operand.array, target)
    except UnsupportedHereError:
        return False
    return True


DEFAULT_LIMIT_BYTES: Final = 1 << 30
DEFAULT_TIMEOUT: Final = 10.0
_WORTH_A_RUN: Final = 0.01  # seconds
_MAX_SESSIONS: Final = 64
_MAX_CHILDREN: Final = 16
_SHARES: Final = 8  # no value is larger than this part of the memory that there may be

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
        spent: Called with the number of these seconds that were used.
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


@dataclass(eq=False)
class _Evaluation:
    """One call of `evaluate`: what is known so far, and what may still be spent."""

    opset_imports: Mapping[str, int]
    is_random: Callable[[ir.Node], bool]
    functions: tuple[ir.Function, ...]
    limit_bytes: int
    timeout: float
    token: CancellationToken

    def __post_init__(self) -> None:
        self._opsets = dict(self.opset_imports)
        self._opset = self._opsets.get("", self._opsets.get("ai.onnx", 1))
        self._functions = {function.identifier(): function for function in self.functions}
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
        while todo and not unusable_runtime():  # without one, what numpy cannot compute stays
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
        results = {}
        for value in wanted:
            operand = self._operand(value)
            if operand is not None:
                results[value] = operand.tensor if operand.tensor is not None else tensor_of(operand.array)
        return results

    # What is there to do

    def _needed(self, nodes: Sequence[ir.Node]) -> list[ir.Node]:
        """The nodes that lead to what is wanted, apart from those that must not be evaluated."""
        needed = set(self._wanted)
        kept = []
        for node in self.token.checked(reversed(nodes)):
            if not any(output in needed for output in node.outputs) or self._refused(node):
                continue
            kept.append(node)
            needed.update(value for value in node.inputs if value is not None)
            needed.update(scope.captured(node))
        return kept[::-1]

    def _refused(self, node: ir.Node) -> bool:
        return any(attribute.is_ref() for attribute in node.attributes.values()) or any(
            self.is_random(inner) for inner in self._inside(node, set())
        )

    def _inside(self, node: ir.Node, seen: set[ir.OperatorIdentifier]) -> Iterator[ir.Node]:
        """The node, those of its subgraphs, and those of the functions that any of them calls."""
        yield node
        for graph in semantics.subgraphs(node):
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
            self._operand(value) is not None for value in scope.captured(node)
        )

    # Numpy

    def _sweep(self, todo: list[ir.Node]) -> list[ir.Node]:
        """Compute in numpy what can be; what is left is for ONNX Runtime, now or later."""
        left = []
        for node in self.token.checked(todo):
            if node.domain not in ("", "ai.onnx") or (node.op_type not in KERNELS and node.op_type != "Constant"):
                left.append(node)
                continue
            operands = [None if value is None else self._operand(value) for value in node.inputs]
            if any(operand is None and value is not None for operand, value in zip(operands, node.inputs, strict=True)):
                left.append(node)
                continue
            call = Call(node, operands, self._opset, self.limit_bytes)
            try:
                results = _constant(node) or on_demand(call) or [Operand(array) for array in compute(call)]
            except UnsupportedHereError:
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
        for node in self.token.checked(todo):
            if node.op_type not in SAFE_TO_EVALUATE or node.domain not in ("", "ai.onnx") or node in self._unsafe:
                continue
            if all(value is None or value in pending or self._operand(value) is not None for value in node.inputs):
                candidates.append(node)
                pending.update(node.outputs)
        if not candidates:
            return []
        return self._of_known_size(candidates)

    def _of_known_size(self, candidates: list[ir.Node]) -> list[ir.Node]:
        types = Batch(candidates, self._opsets, self._functions, self._operand).infer()
        kept: list[ir.Node] = []
        produced: set[ir.Value] = set()
        for node in self.token.checked(candidates):
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

    def _hopeless_with(self, node: ir.Node, types: Mapping[ir.Value, Inferred]) -> bool:
        """Whether ONNX Runtime has no kernel for these types, or the result is too large, in a child process too."""
        outputs = [types.get(value) for value in node.outputs if value.name != ""]
        if any(
            output is not None and output.shape is not None and output.nbytes > self.limit_bytes for output in outputs
        ):
            return True
        inputs = [None if value is None else _type_string(types.get(value)) for value in node.inputs]
        results = [None if value.name == "" else _type_string(types.get(value)) for value in node.outputs]
        if "?" in inputs or "?" in results:
            return False
        return kernels.support_of(CPU, node, self._opset, inputs, results) is None

    def _can_run_here(self, node: ir.Node, types: Mapping[ir.Value, Inferred]) -> bool:
        inputs = [types.get(value) for value in node.inputs if value is not None]
        outputs = [types.get(value) for value in node.outputs if value.name != ""]
        for operand in inputs:
            # Zero elements: a mean of integers divides by their number.
            if operand is None or operand.shape is None or 0 in operand.shape:
                return False
        if inputs and inputs[0] is not None and (node.op_type, _kind(inputs[0].dtype)) in ONLY_HERE:
            return False
        if any(
            operand is not None and operand.dtype == ir.DataType.STRING for operand in inputs
        ) and self._has_long_strings(node):
            return False
        block: int = node.attributes.get_int("block_size", 0)
        if block < 0:
            return False
        if node.op_type in _BOUNDED_BY_INPUT:
            return all(operand is not None and operand.nbytes * 16 <= self.limit_bytes for operand in inputs)
        return all(output is not None and output.shape is not None for output in outputs)

    def _has_long_strings(self, node: ir.Node) -> bool:
        """Whether a string is longer than it is counted: sizes of results would be underestimated."""
        operands = (self._operand(value) for value in node.inputs if value is not None)
        tensors = (
            operand.tensor for operand in operands if operand is not None and operand.dtype == ir.DataType.STRING
        )
        return any(
            len(text) > STRING_BYTES
            for tensor in tensors
            if tensor is not None
            for text in strings_of(tensor).reshape(-1)
        )

    def _here(self, batch: Batch, fetch: Sequence[ir.Value]) -> list[ir.TensorProtocol | None]:
        if self._sessions <= 0:
            raise HazardError("too many sessions")
        self._sessions -= 1
        seconds = self._at_most(DEFAULT_TIMEOUT)
        return run_model(batch.model(fetch), batch.feeds, [batch.name(value) for value in fetch], seconds, self.token)

    # ONNX Runtime in a child process

    def _ready_together(self, todo: list[ir.Node]) -> list[ir.Node]:
        """The nodes that can run now, and those that wait for no more than their lists, which leave no session."""
        lists: set[ir.Value] = set()
        together = []
        for node in todo:
            alone = has_subgraphs(node)
            if not self._ready(node) and (
                alone or any(v is not None and v not in lists and self._operand(v) is None for v in node.inputs)
            ):
                continue
            together.append(node)
            if not alone:
                lists.update(v for v in node.outputs if v.type is not None and not isinstance(v.type, ir.TensorType))
        return together

    def _run_children(self, ready: list[ir.Node], todo: list[ir.Node]) -> None:
        """Nodes with subgraphs go alone: the names inside must stay as they are."""
        together = [node for node in ready if not has_subgraphs(node)]
        if together:
            self._run(together, todo, self._child)
        for node in ready:
            if has_subgraphs(node):
                self._run([node], todo, self._child)

    def _child(self, batch: Batch, fetch: Sequence[ir.Value]) -> list[ir.TensorProtocol | None]:
        if self._children <= 0 or self.timeout <= 0:
            raise HazardError("too many child processes")
        self._children -= 1
        start = time.monotonic()
        try:
            model, names = batch.model(fetch), [batch.name(value) for value in fetch]
            seconds = self._at_most(self.timeout)
            return run_in_child(model, batch.feeds, names, self.limit_bytes, seconds, self.token)
        except OSError as error:
            raise HazardError(f"there is no room for a child process: {error}") from error
        finally:
            self.timeout -= time.monotonic() - start
            self.unsafe_seconds += time.monotonic() - start

    # Either

    def _at_most(self, seconds: float) -> float:
        """So many seconds, or what is left of all.

        Raises:
            HazardError: There are none.
        """
        left = self.token.left
        if left is not None and left < _WORTH_A_RUN:
            raise HazardError("there is no time left")
        return seconds if left is None else min(seconds, left)

    def _run(
        self,
        nodes: list[ir.Node],
        todo: list[ir.Node],
        runner: Callable[[Batch, Sequence[ir.Value]], list[ir.TensorProtocol | None]],
    ) -> None:
        """Run nodes together; where that fails, halves of them, down to those that fail alone."""
        ready = []
        produced: set[ir.Value] = set()
        for node in self.token.checked(nodes):
            values = [*(value for value in node.inputs if value is not None), *scope.captured(node)]
            if all(value in produced or self._operand(value) is not None for value in values):
                ready.append(node)
                produced.update(node.outputs)
        fetch = self._fetched(ready, todo)
        if not fetch:
            return
        try:
            results = runner(Batch(ready, self._opsets, self._functions, self._operand), fetch)
            for value, tensor in zip(fetch, results, strict=True):
                if tensor is not None and tensor.nbytes <= self.limit_bytes:
                    self._known[value] = Operand(tensor)
        except OptimizationCancelled:
            raise
        except Exception:  # onnxruntime raises a class of its own for each status; all mean "not this"
            self.token.check()  # it may have ended what failed
            if len(ready) > 1:
                middle = len(ready) // 2
                self._run(ready[:middle], todo, runner)
                self._run(ready[middle:], todo, runner)

    def _fetched(self, batch: list[ir.Node], todo: list[ir.Node]) -> list[ir.Value]:
        """The results of the batch that are wanted, or that what comes later needs."""
        inside = set(batch)
        produced = {output for node in batch for output in node.outputs if output.name != ""}
        needed = {value for node in todo if node not in inside for value in (*node.inputs, *scope.captured(node))}
        return [
            output
            for node in batch
            for output in node.outputs
            if output in produced and (output in self._wanted or output in needed)
        ]


def _kind(dtype: ir.DataType) -> str:
    if not dtype.is_integer():
        return "f"
    return "i" if dtype.is_signed() else "u"


def _constant(node: ir.Node) -> list[Operand] | None:
    """What a Constant node holds; None for any other node."""
    if node.op_type != "Constant":
        return None
    content = semantics.constant_content(node)
    if content is None:
        raise HazardError("a Constant that is no tensor")
    return [Operand(content)]


def _type_string(inferred: Inferred | None) -> str:
    return "?" if inferred is None else kernels.type_string(ir.TensorType(inferred.dtype))
