"""Given values in the place of random ones, so that what depends on them can be compared.

A random op gives other numbers in each run, and an optimizer may neither merge nor move nor drop it. So the original
and its results are verified as copies, in which each random op is replaced by ops that always give the same numbers, of
the same shape, dtype and range. The numbers depend on the name of the op's output, by which an op of the result is
matched with one of the original (or, where names have changed, on its place among ops with the same attributes). Two
ops that were merged, exchanged or duplicated give other numbers than before, and that is a difference.

What has no such copy (random ops in local functions, of ONNX Runtime's own domain, before opset 11, a Dropout of which
only a run knows whether it trains) stays random.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.serialization.load import load
from ortopt.verification.node_writer import NodeWriter

Signature: TypeAlias = tuple[str, ...]

_MIN_OPSET: Final = 11  # Range
_ALLOWZERO: Final = 14
_CASTLIKE: Final = 15
_STEPS: Final = 1 << 16  # different numbers: exact in any float, and in a wider one the same
_FLOAT: Final = ir.DataType.FLOAT


def random_outputs(model: ir.Model, token: CancellationToken = NEVER) -> frozenset[str]:
    """The outputs that depend on a random op, at any depth. Linear in the nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    random: set[ir.Value] = set()
    for node in token.checked(model.graph):
        below = (inner for graph in scope.nested(node) for inner in graph)
        inputs = (value for inner in (node, *below) for value in inner.inputs)
        if (random and any(value in random for value in inputs)) or semantics.is_random(node, model.functions):
            random.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in random)


class GivenValues:
    """An original without randomness, and results likewise.

    Args:
        model: The original; it is not changed.
        token: Cancellation token.

    Attributes:
        original: A copy in which random ops give the same values each time, as far as that can be.
    """

    def __init__(self, model: ir.Model, token: CancellationToken = NEVER) -> None:
        self._token = token
        self.original = load(model, token)
        replaceable = [
            (node, signature) for node, signature in self._random(self.original) if _has_copy(node, self.original)
        ]
        self._left_random = sum(1 for _ in self._random(self.original)) > len(replaceable)
        names = Counter(_name(node) for node, _ in replaceable)
        self._named: dict[str, Signature] = {}
        self._others: dict[Signature, list[int]] = defaultdict(list)
        self._order: dict[Signature, list[str]] = defaultdict(list)
        for place, (node, signature) in enumerate(replaceable):
            salt = zlib.crc32(_name(node).encode())
            if names[_name(node)] == 1:
                self._named[_name(node)] = signature
                self._order[signature].append(_name(node))
            else:
                salt += place
                self._others[signature].append(salt)
            _give(node, salt, self.original)

    @staticmethod
    def are_needed(model: ir.Model, token: CancellationToken = NEVER) -> bool:
        """Whether a random op of a model can be replaced.

        Args:
            model: Any model.
            token: Cancellation token.
        """
        return any(
            _has_copy(node, model)
            for graph in scope.below(model.graph)
            for node in token.checked(graph)
            if semantics.is_random(node) and not any(True for _ in semantics.subgraphs(node))
        )

    def of(self, result: ir.Model) -> tuple[ir.Model, frozenset[str]]:
        """A result without randomness, and the names of the outputs that a random op still touches.

        Only outputs that may be random in the original, too, are among them.

        Args:
            result: A result; it is not changed.
        """
        copy = load(result, self._token)
        replaceable = [(node, signature) for node, signature in self._random(copy) if _has_copy(node, copy)]
        names = Counter(_name(node) for node, _ in replaceable)
        strangers: dict[Signature, list[ir.Node]] = defaultdict(list)
        missing = {signature: [*salts] for signature, salts in self._others.items()}
        for signature, known in self._order.items():
            gone = [zlib.crc32(name.encode()) for name in known if names[name] != 1]
            missing.setdefault(signature, []).extend(gone)
        for node, signature in replaceable:
            name = _name(node)
            if names[name] == 1 and self._named.get(name) == signature:
                _give(node, zlib.crc32(name.encode()), copy)
            else:
                strangers[signature].append(node)
        excused = self._left_random
        for signature, nodes in strangers.items():
            salts = missing.get(signature, [])
            excused |= bool(salts)
            if len(salts) == len(nodes):
                for node, salt in zip(nodes, salts, strict=True):
                    _give(node, salt, copy)
        return copy, random_outputs(copy, self._token) if excused else frozenset()

    def _random(self, model: ir.Model) -> Iterator[tuple[ir.Node, Signature]]:
        """The random ops themselves, outside of functions, each with what two must have in common."""
        for graph in scope.below(model.graph):
            for node in self._token.checked(tuple(graph)):
                if semantics.is_random(node) and not any(True for _ in semantics.subgraphs(node)):
                    attributes = sorted(f"{name}={attribute.value!r}" for name, attribute in node.attributes.items())
                    yield node, (node.domain, node.op_type, *attributes)


def _name(node: ir.Node) -> str:
    return node.outputs[0].name or ""


def _has_copy(node: ir.Node, model: ir.Model) -> bool:
    """Whether a random op can be replaced by ops that are not."""
    opset = model.opset_imports.get("", 0)
    if node.domain or opset < _MIN_OPSET or any(attribute.is_ref() for attribute in node.attributes.values()):
        return False
    if node.op_type == "Dropout":
        mode = semantics.constant_tensor(node.inputs[2]) if len(node.inputs) > 2 else None
        mask = node.outputs[1] if len(node.outputs) > 1 else None
        kept = mask is not None and mask.is_graph_output()
        if mode is None or not mode.numpy().item() or kept:
            return False
    return node.op_type in _MADE and (_dtype(node) is not None or opset >= _CASTLIKE)


def _dtype(node: ir.Node) -> ir.DataType | None:
    """What a random op gives; None where it is what its input has, and that is unknown."""
    if "dtype" in node.attributes:
        return ir.DataType(node.attributes["dtype"].as_int())
    if node.op_type == "Multinomial":
        return ir.DataType.INT32
    if node.op_type in ("RandomNormal", "RandomUniform"):
        return _FLOAT
    dtype = node.outputs[0].dtype
    return dtype if dtype is not None or node.inputs[0] is None else node.inputs[0].dtype


class _Writer(NodeWriter):
    """Writes nodes before a random one."""

    def uniform(self, shape: ir.Value, salt: int) -> ir.Value:
        """Floats from 0 to 1 that look random: a permutation of equal steps, stirred."""

        def integer(number: int) -> ir.Value:
            return self.constant(number, np.int64)

        zeros = self("ConstantOfShape", shape, value=ir.Tensor(np.zeros(1, np.int64)))
        places = self("Range", integer(0), self("Size", zeros), integer(1))
        first = self("Mod", self("Add", self("Mul", places, integer(40503)), integer(salt)), integer(_STEPS))
        stirred = self("Mod", self("Mul", first, self("Add", first, integer(salt % 8191 | 1))), integer(_STEPS))
        mixed = self("Mod", self("Add", stirred, self("Mul", places, integer(25173))), integer(_STEPS))
        allow = {"allowzero": 1} if self.opset >= _ALLOWZERO else {}
        shaped = self("Reshape", self.cast(mixed, _FLOAT), shape, **allow)
        return self("Mul", shaped, self.constant(1 / _STEPS, np.float32))

    def scaled(self, value: ir.Value, factor: float, offset: float) -> ir.Value:
        return self("Add", self("Mul", value, self.constant(factor, np.float32)), self.constant(offset, np.float32))


def _give(node: ir.Node, salt: int, model: ir.Model) -> None:
    """Let a random op give the same values each time: it becomes an Identity of them."""
    write = _Writer(node, model.opset_imports.get("", 0))
    dtype = _dtype(node)
    value = _MADE[node.op_type](write, node, salt)
    for output in node.outputs[1:]:
        if output.uses():
            mask = write(
                "Cast", write("Not", write("Equal", value[1], write.constant(0, np.float32))), to=ir.DataType.BOOL.value
            )
            output.replace_all_uses_with(mask)
    values = write("CastLike", value[0], node.inputs[0]) if dtype is None else write.cast(value[0], dtype)
    write.become(values)


def _float(node: ir.Node, name: str, default: float) -> float:
    return node.attributes.get_float(name, default)


def _shape(write: _Writer, node: ir.Node) -> ir.Value:
    if "shape" in node.attributes:
        return write.constant(list(node.attributes["shape"].as_ints()), np.int64)
    return write("Shape", node.inputs[0])


def _uniform(write: _Writer, node: ir.Node, salt: int) -> tuple[ir.Value, ir.Value]:
    low, high = _float(node, "low", 0.0), _float(node, "high", 1.0)
    drawn = write.uniform(_shape(write, node), salt)
    return write.scaled(drawn, high - low, low), drawn


def _normal(write: _Writer, node: ir.Node, salt: int) -> tuple[ir.Value, ir.Value]:
    wide = _float(node, "scale", 1.0) * 12**0.5  # so that the deviation is that of the normal ones
    drawn = write.uniform(_shape(write, node), salt)
    return write.scaled(drawn, wide, _float(node, "mean", 0.0) - wide / 2), drawn


def _bernoulli(write: _Writer, node: ir.Node, salt: int) -> tuple[ir.Value, ir.Value]:
    assert node.inputs[0] is not None
    drawn = write.uniform(_shape(write, node), salt)
    return write.cast(write("Less", drawn, write.cast(node.inputs[0], _FLOAT)), _FLOAT), drawn


def _multinomial(write: _Writer, node: ir.Node, salt: int) -> tuple[ir.Value, ir.Value]:
    assert node.inputs[0] is not None
    samples = node.attributes.get_int("sample_size", 1)
    rows = write("Reshape", write.cast(node.inputs[0], _FLOAT), write.constant([0, 1, -1], np.int64))
    logits = write("Expand", rows, write.constant([1, samples, 1], np.int64))
    drawn = write.uniform(write("Shape", logits), salt)
    return write("ArgMax", write("Add", logits, drawn), axis=2, keepdims=0), drawn


def _dropout(write: _Writer, node: ir.Node, salt: int) -> tuple[ir.Value, ir.Value]:
    data, ratio = node.inputs[0], node.inputs[1]
    assert data is not None
    share = write.constant(0.5, np.float32) if ratio is None else write.cast(ratio, _FLOAT)
    drawn = write.uniform(write("Shape", data), salt)
    kept = write.cast(write("Not", write("Less", drawn, share)), _FLOAT)
    factor = write("Div", kept, write("Sub", write.constant(1.0, np.float32), share))
    return write("Mul", write.cast(data, _FLOAT), factor), kept


_MADE: Final = {
    "RandomUniform": _uniform,
    "RandomUniformLike": _uniform,
    "RandomNormal": _normal,
    "RandomNormalLike": _normal,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "Dropout": _dropout,
}
