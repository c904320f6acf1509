"""Outputs side by side: what agrees, what differs, by how much.

Dtype and shape must be the same; integers, booleans and strings too. Floats agree where

- NaN stands where NaN stands, and each infinity where the same infinity stands, and
- elsewhere ``|got - expected| <= t * max(scale, |expected|)``, ``scale`` being the root mean square of the output's
  finite numbers (1 where all are 0), and ``t`` within the `Limits` of the output's dtype: an error below ``sure`` is
  rounding, one above ``cap`` is none, and in between the model's own noise decides (`ortopt.verification.noise`), or
  ``usual`` where nobody asks. What is computed from something of a coarser dtype, or quantized, is held to that
  one's.

Where an output is uneven, one scale for all would let what is large excuse what is small: a single number of a million,
a row of coordinates beside a row of probabilities. There an error is measured by the scale of its surroundings, too
(`OutputRow.local`): the least of the median and of the root mean squares of the slices that it stands in. Numbers that
cancel out have such errors rightfully, so what is beyond ``usual`` there is held to the noise of the original, which is
measured alike.

A zero of the other sign is a difference, too (its reciprocal is the other infinity), unless a copy of the original that
differs from it by rounding only has such zeros in the same output, or gives other numbers where they are: then their
signs are the kernels' whim. Nor does it count where inputs hold many zeros: whole sums are of zeros then.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.graph import scope
from ortopt.semantics import subgraphs
from ortopt.semantics.op_traits import SHAPE_QUERIES
from ortopt.terminal_text import quoted

Array = np.ndarray[Any, Any]

TOLERANCES: Final = {
    ir.DataType.DOUBLE: 1e-9,
    ir.DataType.COMPLEX128: 1e-9,
    ir.DataType.FLOAT: 1e-4,
    ir.DataType.COMPLEX64: 1e-4,
    ir.DataType.FLOAT16: 2e-2,
    ir.DataType.BFLOAT16: 8e-2,
    ir.DataType.FLOAT8E4M3FN: 0.3,
    ir.DataType.FLOAT8E4M3FNUZ: 0.3,
    ir.DataType.FLOAT8E5M2: 0.3,
    ir.DataType.FLOAT8E5M2FNUZ: 0.3,
}
"""What an output may differ by where its model's noise is not known."""

_NAMES = {dtype.name.lower(): dtype for dtype in TOLERANCES}
TIMES_THE_NOISE: Final = 8
"""How many times the original's own noise an error may be: both are the greatest of many, one run each."""

_FEW: Final = 0.01
"""The share of an output's integers that may come out differently where the original itself is undecided."""

_UNEVEN: Final = 32
"""How many times the scale of the surroundings that of the output is, where it is called uneven."""

_UNEVEN_IF_COARSE: Final = 1 << 12
"""The same for what is quantized or of 16 bits, of which a step may be as large as 1/255 of the greatest number."""

_SAMPLE: Final = 1 << 16  # elements of which a median is taken
_SLICE: Final = 4  # elements that a slice has at least
_QUANTIZING: Final = frozenset({"QuantizeLinear", "DynamicQuantizeLinear", "DynamicQuantizeMatMul"})
_DTYPES: Final = frozenset({"to", "dtype", "output_dtype"})


class Limits(NamedTuple):
    """What an error of a dtype is, as a share of the output's scale.

    Attributes:
        sure: Up to here it is rounding: some units in the last place.
        cap: Beyond, it is wrong, however noisy the model is.
    """

    sure: float
    cap: float


LIMITS: Final = {
    1e-9: Limits(1e-11, 1e-6),
    1e-4: Limits(2e-5, 1e-2),
    2e-2: Limits(2e-3, 0.1),
    8e-2: Limits(1.6e-2, 0.2),
    0.3: Limits(0.125, 0.5),
}
"""By what is usual (`TOLERANCES`)."""


@dataclass(frozen=True, slots=True)
class OutputRow:
    """One output on the input set where it differs most.

    Attributes:
        name: The output's name.
        worst: The greatest error relative to the scale of the output: 0 is equal, infinity is not comparable.
        tolerance: What it may be.
        agrees: Whether it is within the tolerance.
        detail: What differs, in words; empty where it agrees.
        absolute: The greatest absolute error.
        relative: The greatest error relative to the element itself, where that is not 0.
        mean: The root mean square of the errors, relative to the scale.
        index: Where the worst element stands.
        expected: What it should be.
        got: What it is.
        noise: The model's own noise, as `worst` is measured; None where nobody asked for it.
        zeros: How many zeros have the other sign.
        first_zero: Where the first of them stands.
        doubtful: Whether the model's own noise decides.
        local: The greatest error relative to the scale of its surroundings, where the output is uneven and one is
            greater than is usual.
        local_detail: That one, in words.
        shown: Whether it tells anything: NaN everywhere does not.
    """

    name: str
    worst: float = 0.0
    tolerance: float = 0.0
    agrees: bool = True
    detail: str = ""
    absolute: float = 0.0
    relative: float = 0.0
    mean: float = 0.0
    index: tuple[int, ...] = ()
    expected: str = ""
    got: str = ""
    noise: float | None = None
    zeros: int = 0
    first_zero: tuple[int, ...] = ()
    doubtful: bool = False
    local: float = 0.0
    local_detail: str = ""
    shown: bool = True


def worst_of(rows: list[OutputRow], name: str) -> OutputRow:
    """The row that disagrees most."""
    return max(rows, key=lambda row: (not row.agrees, row.worst), default=OutputRow(name))


def random_outputs(model: ir.Model, token: CancellationToken = NEVER) -> frozenset[str]:
    """The outputs that depend on a random op, at any depth. Linear in the nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    random: set[ir.Value] = set()
    for node in token.checked(model.graph):
        inputs = (value for one in (node, *_inside(node)) for value in one.inputs)
        if (random and any(value in random for value in inputs)) or semantics.is_random(node, model.functions):
            random.update(node.outputs)
    return frozenset(value.name or "" for value in model.graph.outputs if value in random)


def tolerances(model: ir.Model, token: CancellationToken = NEVER) -> dict[str, float]:
    """For each output, the tolerance of the coarsest dtype among all that it is computed from.

    A coarse dtype comes in by an input, a constant or a Cast, and stays in all that depends on it: no types need to be
    known in between. A step of quantization may go the other way after a rounding: that is float16's. Linear in the
    nodes.

    Args:
        model: The model.
        token: Cancellation token.
    """
    functions = _FunctionTolerances(model)
    known: dict[ir.Value, float] = {}

    def of(value: ir.Value) -> float:
        return known[value] if value in known else _of_type(value.dtype)

    for node in token.checked(model.graph):
        coarsest = functions.of_node(node)
        if node.op_type not in SHAPE_QUERIES or node.domain:
            for one in (node, *_inside(node)):
                for value in one.inputs:
                    coarsest = max(coarsest, of(value)) if value is not None else coarsest
        for value in node.outputs:
            known[value] = coarsest
    return {value.name or "": of(value) for value in model.graph.outputs}


def _inside(node: ir.Node) -> list[ir.Node]:
    """The nodes of a node's subgraphs, at any depth."""
    if not node.attributes:
        return []
    return [one for held in subgraphs(node) for graph in scope.below(held) for one in graph]


class _FunctionTolerances:
    """What nodes bring in by themselves: by their attributes, their subgraphs and the functions that they call."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._known: dict[ir.OperatorIdentifier, float] = {}

    def of_node(self, node: ir.Node) -> float:
        """The greatest tolerance that a node brings in."""
        found = _own(node)
        pending = [graph for held in subgraphs(node) for graph in scope.below(held)]
        called = [node.op_identifier()] if self._functions else []
        seen: set[ir.OperatorIdentifier] = set()
        while pending or called:
            if not pending:
                identifier = called.pop()
                if identifier in seen or identifier not in self._functions:
                    continue
                seen.add(identifier)
                if identifier in self._known:
                    found = max(found, self._known[identifier])
                    continue
                pending.extend(scope.below(self._functions[identifier].graph))
                continue
            graph = pending.pop()
            found = max(found, *(_of_type(value.dtype) for value in graph.initializers.values()), 0.0)
            for inner in graph:
                found = max(found, _own(inner))
                if self._functions:
                    called.append(inner.op_identifier())
        if node.op_identifier() in self._functions:
            self._known[node.op_identifier()] = found
        return found


def _of_type(dtype: ir.DataType | None) -> float:
    return 0.0 if dtype is None else TOLERANCES.get(dtype, 0.0)


def _own(node: ir.Node) -> float:
    """The tolerance of what a node makes, whatever it is given."""
    found = 0.0
    if node.op_type in _QUANTIZING or node.op_type.startswith("QLinear"):
        found = TOLERANCES[ir.DataType.FLOAT16]
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            continue
        if name in _DTYPES and attribute.type == ir.AttributeType.INT:
            number = attribute.as_int()
            found = max(found, *(tolerance for dtype, tolerance in TOLERANCES.items() if dtype.value == number), 0.0)
        elif attribute.type == ir.AttributeType.TENSOR:
            found = max(found, _of_type(attribute.as_tensor().dtype))
    return max(found, *(_of_type(value.dtype) for value in node.outputs), 0.0)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How outputs are compared.

    Attributes:
        tolerances: The least tolerance of an output's floats, by its name.
        random: Outputs of which only dtypes and shapes are compared.
        rtol: If it or ``atol`` is given, floats agree where ``|got - expected| <= atol + rtol * |expected|``, whatever
            their dtype and scale, and noise is not asked for.
        atol: See ``rtol``.
    """

    tolerances: Mapping[str, float] = field(default_factory=dict)
    random: Collection[str] = frozenset()
    rtol: float | None = None
    atol: float | None = None

    def of(self, name: str, type_: str, expected: Any, got: Any, *, extreme: bool = False) -> OutputRow:
        """Compare two outputs: arrays (bfloat16 and float8 as their bits), lists, dicts or None.

        Args:
            name: The output's name.
            type_: Its type in ONNX's spelling.
            expected: What the original gave.
            got: What the result gave.
            extreme: Whether the inputs were such that only the noise of the original can tell what is an error.
        """
        if _kind(expected) is not _kind(got):
            return _incomparable(name, "only one of the two is there")
        if isinstance(expected, list):
            return self._sequences(name, type_, expected, got)
        if isinstance(expected, dict):
            return self._maps(name, expected, got)
        if expected is None:
            return OutputRow(name)
        row = self._arrays(name, type_, expected, got)
        if not extreme or self.rtol is not None or self.atol is not None or expected.shape != got.shape:
            return row
        usual = row.agrees and row.local <= LIMITS[row.tolerance].cap if row.local else row.agrees
        return dataclasses.replace(row, doubtful=not usual and expected.dtype == got.dtype)

    def _sequences(self, name: str, type_: str, expected: list[Any], got: list[Any]) -> OutputRow:
        if len(expected) != len(got):
            return _incomparable(name, f"a sequence of {len(got)} instead of {len(expected)}")
        inner = type_.removeprefix("optional(").removeprefix("seq(")
        return worst_of([self.of(name, inner, one, other) for one, other in zip(expected, got, strict=True)], name)

    def _maps(self, name: str, expected: dict[Any, Any], got: dict[Any, Any]) -> OutputRow:
        if expected.keys() != got.keys():
            return _incomparable(name, "the keys of the map differ")
        values = [np.array([one[key] for key in expected]) for one in (expected, got)]
        return self._arrays(name, "float" if values[0].dtype.kind == "f" else "", *values)

    def _arrays(self, name: str, type_: str, expected: Array, got: Array) -> OutputRow:
        if expected.dtype != got.dtype or expected.shape != got.shape:
            return _incomparable(
                name, f"{got.dtype}{list(got.shape)} instead of {expected.dtype}{list(expected.shape)}"
            )
        if name in self.random or expected.size == 0:
            return OutputRow(name)
        dtype = _NAMES.get(type_.removeprefix("optional(").removeprefix("tensor(").rstrip(")"))
        if dtype is None:
            return _exact(name, np.atleast_1d(expected), np.atleast_1d(got))
        numbers = _numbers(expected, dtype), _numbers(got, dtype)
        if np.isnan(numbers[0]).all() and np.isnan(numbers[1]).all():
            return OutputRow(name, shown=False)
        if self.rtol is not None or self.atol is not None:
            return _within(_measured(name, *numbers, 0.0), *numbers, self.rtol or 0.0, self.atol or 0.0)
        row = _measured(name, *numbers, max(self.tolerances.get(name, 0.0), TOLERANCES[dtype]))
        return row if math.isinf(row.worst) else _judged(row)


def is_float(value: Any, type_: str) -> bool:
    """Whether an output is an array of floats that numpy has; its type in ONNX's spelling."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and "seq(" not in type_


def _kind(value: Any) -> type:
    """The type of an output; an array that is mapped from a file is an array."""
    return np.ndarray if isinstance(value, np.ndarray) else type(value)


def _incomparable(name: str, detail: str) -> OutputRow:
    return OutputRow(name, math.inf, 0.0, False, detail)


def _numbers(array: Array, dtype: ir.DataType) -> Array:
    """Numbers of double precision, of at least one dimension; bits are read as what they stand for."""
    array = np.atleast_1d(array)
    numbers = array.view(dtype.numpy()) if array.dtype.kind == "u" else array
    return numbers.astype(np.complex128 if numbers.dtype.kind == "c" else np.float64)


def _first(mask: Array) -> tuple[int, ...]:
    return tuple(int(one) for one in np.argwhere(mask)[0])


def _exact(name: str, expected: Array, got: Array) -> OutputRow:
    different = np.asarray(expected != got)
    if not different.any():
        return OutputRow(name)
    where = _first(different)
    many = f"{int(different.sum())} of {expected.size} elements differ"
    texts = _shown(expected[where]), _shown(got[where])
    detail = f"{many}, the first at {list(where)}: {texts[1]} instead of {texts[0]}"
    numeric = expected.dtype.kind in "iub"
    absolute = float(np.abs(expected.astype(np.float64) - got.astype(np.float64)).max()) if numeric else math.inf
    return OutputRow(
        name,
        math.inf,
        0.0,
        False,
        detail,
        absolute=absolute,
        relative=math.inf,
        mean=math.inf,
        index=where,
        expected=texts[0],
        got=texts[1],
        doubtful=True,
    )


def _shown(element: Any) -> str:
    """An element for people; strings come out of files that nobody vouches for."""
    return quoted(element) if isinstance(element, str | bytes) else str(element)


def _texts(expected: Any, got: Any) -> tuple[str, str]:
    """Two floats, with as many digits as tell them apart."""
    short = f"{expected:.9g}", f"{got:.9g}"
    return short if short[0] != short[1] or expected == got else (f"{expected:.17g}", f"{got:.17g}")


def _measured(name: str, expected: Array, got: Array, tolerance: float) -> OutputRow:
    """The errors of floats; a row that agrees unless NaN or infinities stand elsewhere."""
    finite = np.isfinite(expected)
    alike = np.where(finite, np.isfinite(got), (expected == got) | (np.isnan(expected) & np.isnan(got)))
    if not alike.all():
        where = _first(~alike)
        many = f"NaN or infinity at {int((~alike).sum())} of {expected.size} places where the other has it not"
        texts = _texts(expected[where], got[where])
        row = _incomparable(name, f"{texts[1]} instead of {texts[0]} at {list(where)} ({many})")
        return dataclasses.replace(row, index=where, expected=texts[0], got=texts[1])
    if not finite.any():
        return OutputRow(name, 0.0, tolerance)
    wanted, given = np.where(finite, expected, 0), np.where(finite, got, 0)
    sizes, differences = np.abs(wanted), np.abs(given - wanted)
    most = float(sizes.max()) or 1.0
    scale = most * float(np.sqrt(np.sum((sizes / most) ** 2) / finite.sum())) or 1.0
    errors = differences / np.maximum(scale, sizes)
    where = tuple(int(one) for one in np.unravel_index(int(errors.argmax()), errors.shape))
    turned = finite & (wanted == 0) & (given == 0) & (np.signbit(wanted.real) != np.signbit(given.real))
    texts = _texts(expected[where], got[where])
    zeros = int(turned.sum())
    return OutputRow(
        name,
        float(errors[where]),
        tolerance,
        absolute=float(differences.max()),
        relative=float(np.divide(differences, sizes, out=np.zeros_like(differences), where=sizes > 0).max()),
        mean=float(np.sqrt(np.mean(errors**2))),
        index=where,
        expected=texts[0],
        got=texts[1],
        zeros=zeros,
        first_zero=_first(turned) if zeros else (),
        **_locally(wanted, given, differences, scale, tolerance),
    )


def _locally(wanted: Array, given: Array, differences: Array, scale: float, tolerance: float) -> dict[str, Any]:
    """The greatest error by the scale of its surroundings, for an `OutputRow`; nothing where it is usual."""
    sizes = np.abs(wanted)
    suspect = differences > tolerance * sizes  # the scale of the surroundings can only forgive more
    if not suspect.any():
        return {}
    local = _surroundings(sizes)
    uneven = local * (_UNEVEN if tolerance <= TOLERANCES[ir.DataType.FLOAT] else _UNEVEN_IF_COARSE) < scale
    suspect &= uneven
    if not suspect.any():
        return {}
    errors = np.where(suspect, differences / np.maximum(np.maximum(local, sizes), np.finfo(np.float64).tiny), 0)
    where = tuple(int(one) for one in np.unravel_index(int(errors.argmax()), errors.shape))
    if errors[where] <= tolerance:
        return {}
    texts = _texts(wanted[where], given[where])
    said = f"{texts[1]} instead of {texts[0]} at {list(where)}: an error of {errors[where]:.2g} of what is around it"
    return {"local": float(errors[where]), "local_detail": said}


def _surroundings(sizes: Array) -> Array:
    """For each place the scale of what is around it: the least of the median and of its slices' root mean squares."""
    flat = sizes.reshape(-1)
    some = flat[:: max(1, flat.size // _SAMPLE)]
    some = some[some > 0]
    median = float(np.median(some)) if some.size else math.inf
    found = np.full(sizes.shape, median)
    for axis, size in enumerate(sizes.shape):
        if size < 2 or sizes.size // size < _SLICE:
            continue
        others = tuple(one for one in range(sizes.ndim) if one != axis)
        most = sizes.max(axis=others, keepdims=True)
        safe = np.where(most > 0, most, 1)
        means = most * np.sqrt(np.mean((sizes / safe) ** 2, axis=others, keepdims=True))
        found = np.minimum(found, np.where(means > 0, means, math.inf))
    return found


def _judged(row: OutputRow) -> OutputRow:
    """A row by what is usual; doubtful if the noise may say otherwise."""
    limits = LIMITS[row.tolerance]
    doubtful = row.worst <= limits.cap and (row.worst > limits.sure or row.zeros > 0 or row.local > 0)
    if row.worst > row.tolerance:
        return dataclasses.replace(row, agrees=False, detail=_allowed(row), doubtful=doubtful)
    if row.zeros:
        return dataclasses.replace(row, agrees=False, detail=_zeros(row), doubtful=doubtful)
    return dataclasses.replace(row, doubtful=doubtful)


def regardless_of_signs(row: OutputRow) -> OutputRow:
    """A row whose zeros may have either sign."""
    if not row.zeros or math.isinf(row.worst):
        return row
    return _judged(dataclasses.replace(row, zeros=0, first_zero=(), agrees=True, detail="", doubtful=False))


def _zeros(row: OutputRow) -> str:
    places = f"{row.zeros} places, the first at " if row.zeros > 1 else ""
    return f"a zero has the other sign at {places}{list(row.first_zero)}"


def _allowed(row: OutputRow) -> str:
    where = f"{row.got} instead of {row.expected} at {list(row.index)}"
    return f"{where}: an error of {row.worst:.2g} of the output's scale, where {row.tolerance:.2g} is allowed"


def settled(
    row: OutputRow, noise: float, mean: float, zeros: int = 0, *, local: float = 0.0, extreme: bool = False
) -> OutputRow:
    """A doubtful row of floats, once the model's own noise is known.

    Args:
        row: The row.
        noise: The greatest error that the original makes itself, relative to the scale.
        mean: The root mean square of these errors.
        zeros: How many zeros of copies of the original have another sign than its own, or any number where its zeros
            are sums that cancel out (`are_cancelled`).
        local: The greatest error that the original makes itself, relative to its surroundings.
        extreme: Whether no error is too large to be noise.
    """
    limits = LIMITS[row.tolerance]
    usual = row.tolerance
    allowed = min(max(limits.sure, TIMES_THE_NOISE * noise), math.inf if extreme else limits.cap)
    mean_allowed = max(limits.sure, TIMES_THE_NOISE * mean)
    row = dataclasses.replace(row, tolerance=allowed, noise=noise, doubtful=False, agrees=True, detail="")
    if row.worst > allowed:
        said = f"{_allowed(row)} (the model's own noise is {noise:.2g})"
        return dataclasses.replace(row, agrees=False, detail=said)
    if row.mean > mean_allowed:
        said = f"the errors are {row.mean:.2g} of the output's scale on average, where {mean_allowed:.2g} is allowed"
        return dataclasses.replace(row, agrees=False, detail=f"{said} (the model's own noise is {mean:.2g})")
    if row.local > max(usual, TIMES_THE_NOISE * local):
        said = f"{row.local_detail}, where the output is uneven (the model's own noise is {local:.2g} there)"
        return dataclasses.replace(row, agrees=False, detail=said)
    if row.zeros and not zeros:
        return dataclasses.replace(row, agrees=False, detail=_zeros(row))
    return row


def are_cancelled(expected: Any, got: Any, others: Sequence[Any]) -> bool:
    """Whether zeros that have come out with the other sign are sums that cancel out: their sign means nothing.

    Args:
        expected: What the original gave.
        got: What the result gave.
        others: What copies of the original gave whose inputs and weights differ in their last place.

    Returns:
        Whether at each such place a copy gives something else than that zero; zeros that are there for another reason,
        as those of a Relu, stay.
    """
    arrays = [one for one in others if isinstance(one, np.ndarray) and one.shape == getattr(expected, "shape", None)]
    if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f" or expected.dtype != got.dtype:
        return False
    turned = (expected == 0) & (got == 0) & (np.signbit(expected) != np.signbit(got))
    moved = np.zeros_like(turned)
    for one in arrays:
        moved |= (one != 0) | (np.signbit(one) != np.signbit(expected))
    return bool(moved[turned].all())


def expected_elsewhere(row: OutputRow, expected: Any, got: Any, others: Sequence[Any]) -> OutputRow:
    """A row of integers, booleans or strings that differ, once it is known what copies of the original give.

    Args:
        row: The row.
        expected: What the original gave.
        got: What the result gave.
        others: What copies of the original gave whose inputs and weights differ in their last place.

    Returns:
        One that agrees if at each place one of the copies gives what the result gives, and such places are few: a
        hundredth, or one.
    """
    arrays = [one for one in others if isinstance(one, np.ndarray) and one.shape == getattr(expected, "shape", None)]
    if not isinstance(expected, np.ndarray) or not arrays:
        return dataclasses.replace(row, doubtful=False)
    different = np.atleast_1d(np.asarray(expected != got))
    count = int(different.sum())
    explained = np.zeros_like(different)
    for one in arrays:
        explained |= np.atleast_1d(np.asarray(one == got))
    if count > max(1, _FEW * different.size) or not explained[different].all():
        return dataclasses.replace(row, doubtful=False)
    share = count / different.size
    return dataclasses.replace(
        row, worst=share, tolerance=_FEW, mean=share, noise=share, agrees=True, detail="", doubtful=False
    )


def allowing_elsewhere(expected: Any, got: Any, others: Sequence[Any]) -> Any:
    """What was expected, with what was got wherever NaN or infinities tell the two apart but a copy gives such too.

    Args:
        expected: What the original gave.
        got: What the result gave.
        others: What copies of the original gave.
    """
    if not isinstance(expected, np.ndarray) or expected.dtype.kind != "f" or expected.shape != got.shape:
        return expected
    differ = _kinds(expected) != _kinds(got)
    explained = np.zeros_like(differ)
    for one in others:
        if isinstance(one, np.ndarray) and one.shape == expected.shape and one.dtype.kind == "f":
            explained |= _kinds(one) == _kinds(got)
    return np.where(differ & explained, got, expected)


def _kinds(array: Array) -> Array:
    """Finite numbers, NaN and either infinity as what tells them apart."""
    return np.where(np.isnan(array), 2, np.where(np.isinf(array), np.sign(array), 3))


def expected_nearby(row: OutputRow, expected: Any, got: Any, others: Sequence[Any]) -> OutputRow:
    """A row of integers that differ on extreme inputs: right if copies of the original are as far from it.

    Args:
        row: The row.
        expected: What the original gave.
        got: What the result gave.
        others: What copies of the original gave.
    """
    arrays = [one for one in others if isinstance(one, np.ndarray) and one.shape == getattr(expected, "shape", None)]
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "iub" or not arrays:
        return dataclasses.replace(row, doubtful=False)
    spread = max(_distance(expected, one) for one in arrays)
    if _distance(expected, got) > TIMES_THE_NOISE * spread:
        return dataclasses.replace(row, doubtful=False)
    return dataclasses.replace(row, worst=0.0, agrees=True, detail="", doubtful=False)


def _distance(one: Array, other: Array) -> float:
    return float(np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0))


def _within(row: OutputRow, expected: Array, got: Array, rtol: float, atol: float) -> OutputRow:
    """A row by the measure of numpy's ``allclose``."""
    if math.isinf(row.worst):
        return row
    finite = np.isfinite(expected)
    sizes = np.abs(np.where(finite, expected, 0))
    differences = np.abs(np.where(finite, got, 0) - np.where(finite, expected, 0))
    excess = differences - (atol + rtol * sizes)
    where = tuple(int(one) for one in np.unravel_index(int(excess.argmax()), excess.shape))
    texts = _texts(expected[where], got[where])
    row = dataclasses.replace(row, tolerance=rtol, index=where, expected=texts[0], got=texts[1])
    if excess[where] <= 0:
        return row
    detail = f"{row.got} instead of {row.expected} at {list(where)}: beyond rtol {rtol:.2g} and atol {atol:.2g}"
    return dataclasses.replace(row, agrees=False, detail=detail)


__all__ = [
    "LIMITS",
    "TOLERANCES",
    "Comparison",
    "OutputRow",
    "allowing_elsewhere",
    "are_cancelled",
    "expected_elsewhere",
    "expected_nearby",
    "is_float",
    "random_outputs",
    "regardless_of_signs",
    "settled",
    "tolerances",
    "worst_of",
]
