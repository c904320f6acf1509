"""Inputs that a model accepts, drawn from a seed: sizes for its symbols, integers that fit where they are used.

A user has no inputs at hand when a model is verified. What is known is used: a symbol has one size wherever it
stands, an index into a table of 512 rows is below 512, a mask is of zeros and ones. What is not known is tried:
`attempts` gives several ways to draw, the most natural first.
"""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import onnx_ir as ir

from ortopt import semantics
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.graph import scope, symbolic
from ortopt.semantics.op_traits import BROADCASTING, BROADCASTING_ONE_WAY, SHAPE_QUERIES
from ortopt.terminal_text import quoted
from ortopt.verification.numbers import (
    FAR,
    FARTHEST,
    NEAR,
    FloatRange,
    IntegerRange,
    drawn_of,
    integers_of,
    is_free_integer,
    is_wide_integer,
)

Array = np.ndarray[Any, Any]
Inputs: TypeAlias = dict[str, Any]
"""By input: an array, or a list of arrays for a sequence."""


class Recorded(dict[str, Any]):
    """Inputs that were recorded for a model, by name: where they do not fit, others are drawn."""


_ELEMENTS_AT_MOST: Final = 1 << 28
_LONG_AT_MOST: Final = 1 << 22  # elements of an input whose last dimension is tried to be long
_KEPT_BY: Final = frozenset(
    {"Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Expand", "Transpose", "Flatten", "Slice", "Gather", "Tile"}
    | {"Concat", "Split", "Clip", "Where", "Add"}
)
_STEPS: Final = 200  # how far from an input its consumers are looked at
_COMPARED: Final = {"Equal": 0, "Greater": 1, "GreaterOrEqual": 0, "Less": -1, "LessOrEqual": 0}  # beyond the constant
_SIZED_BY_THE_FIRST: Final = frozenset(
    {"Range", "ConstantOfShape", "Loop", "If", "Scan", "AffineGrid", "BlackmanWindow", "HammingWindow", "HannWindow"}
    | {"MelWeightMatrix", "SequenceMap"}
)
_ALL_ARE_DATA: Final = (
    (BROADCASTING - {"BitShift", "Div", "Mod"})  # whose second operand is no free number: 0 or a large one may fail
    | BROADCASTING_ONE_WAY
    | {"Clip", "Concat", "Einsum", "Gather", "GatherElements", "GatherND", "Gemm", "MatMul", "MatMulInteger"}
    | {"ScatterElements", "ScatterND"}
)
"""Ops none of whose inputs says how large something is."""

_OTHERS: Final[tuple[FloatRange, ...]] = ("normal", "unit", "coarse", "nan", "inf")
_OTHER_INTEGERS: Final[tuple[IntegerRange, ...]] = ("signed", "extreme", "small", "binary", "zero", "one")
_SPATIAL: Final = ("height", "width", "h", "w", "hh", "ww", "image_size", "depth")


@dataclass(frozen=True, slots=True)
class Draw:
    """One way to draw inputs.

    Attributes:
        size: The size of every symbol, and of dimensions without one but the first of an input, which is 2 at most;
            None chooses by the symbol's name.
        length: The size of the last dimension of each input of several, as far as it is open: of a signal's samples,
            say, of which a frame takes hundreds. Other symbols are natural, what else is open is 1.
        integers: ``natural`` respects what is known of an input's use, ``signed`` counts from the end, too, and is
            larger where nothing is known, ``extreme`` goes to the bounds of the dtype where the model may survive that;
            the others are what to try instead.
        floats: ``normal``, uniform between 0 and 1 (``unit``), ``wide``: magnitudes on a log scale, the largest of them
            negative, ``positive``: likewise without a sign, ``coarse``: halves, so that there are zeros, ones, ties,
            and numbers at a threshold, or normal with ``nan`` or infinities (``inf``) in single places.
        octaves: How far the magnitudes of ``wide`` and ``positive`` floats go from 1, both ways.
        told: Whether inputs of one element that are compared with a constant are such that the comparison holds, and
            bools are true: branches hang on them.
        empty: The symbol that is 0.
        odd: Whether symbols' sizes are others than the natural ones, and each second symbol's is 1: those of the first,
            third and so on if it is 0, of the others if it is 1.
    """

    size: int | None = None
    length: int | None = None
    integers: IntegerRange = "natural"
    floats: FloatRange = "normal"
    octaves: int = NEAR
    told: bool = True
    empty: str | None = None
    odd: Literal[0, 1] | None = None

    @property
    def is_extreme(self) -> bool:
        """Whether numbers are such that results may differ legitimately: large errors, overflow, NaN."""
        far = self.floats in ("wide", "positive") and self.octaves > NEAR
        return far or self.floats in ("nan", "inf") or self.integers == "extreme"

    @property
    def milder(self) -> Draw | None:
        """What to draw where the model does not take this, or overflows."""
        integers: IntegerRange = "signed" if self.integers == "extreme" else self.integers
        found = dataclasses.replace(self, octaves=min(self.octaves, NEAR), integers=integers)
        return None if found == self or self.floats in ("positive", "nan", "inf") else found


def further(
    *, fine: bool, symbols: int, floating: bool = False, integers: bool = False, free: bool = False
) -> Iterator[Draw]:
    """Ways to draw that show what the natural ones may hide: wrong bounds, broadcasting of one size only, signs, ties.

    The last is the cheapest, in the place of the others where none of them can be afforded.

    Args:
        fine: Whether nothing is computed in less than single precision, which large numbers would overflow.
        symbols: How many there are.
        floating: Whether there are floats.
        integers: Whether there are integers that natural draws leave positive.
        free: Whether some of them may be anything.
    """
    wide: FloatRange = "wide" if fine else "normal"
    far = FAR if fine else NEAR
    yield Draw(floats=wide, octaves=far, odd=1)
    if floating and fine:
        yield Draw(floats="positive", octaves=far, odd=0 if symbols > 1 else None)
    elif symbols > 1:
        yield Draw(odd=0)
    if floating:
        yield Draw(floats="coarse")
        yield Draw(floats="nan")
    if integers:
        yield Draw(integers="extreme" if free else "signed")
    if symbols:
        yield Draw(floats=wide, size=1)


def thorough(*, fine: bool, symbols: int) -> Iterator[Draw]:
    """Many more ways, for who asks for them.

    Args:
        fine: As `further` takes it.
        symbols: As `further` takes it.
    """
    sizes: tuple[Literal[0, 1] | None, ...] = (None, 1, 0) if symbols > 1 else (None, 1)
    for odd in sizes:
        for octaves in (NEAR, FAR, FARTHEST) if fine else (NEAR,):
            yield Draw(floats="wide", octaves=octaves, odd=odd)
            yield Draw(floats="positive", octaves=octaves, odd=odd)
        for floats in _OTHERS:
            yield Draw(floats=floats, odd=odd)
        for integers in _OTHER_INTEGERS:
            if integers == "extreme" and not fine:
                continue
            yield Draw(integers=integers, odd=odd)
        yield Draw(told=False, odd=odd)
    for size in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33):
        yield Draw(size=size)


def attempts() -> Iterator[Draw]:
    """Ways to draw, in the order in which they are worth trying."""
    yield Draw()
    yield Draw(size=1)
    yield Draw(integers="small")
    yield Draw(size=2)
    yield Draw(integers="binary")
    yield Draw(integers="one")
    yield Draw(integers="zero")
    yield Draw(floats="unit")
    for size in (8, 16, 32, 64, 128, 224):
        yield Draw(size=size)
    yield Draw(size=1, integers="one", floats="unit")
    yield Draw(size=1, integers="zero", floats="unit")
    for length in (256, 512, 1024, 4096, 16000):
        yield Draw(length=length)


def draw_inputs(
    model: ir.Model, *, seed: int = 0, sizes: Mapping[str, int] | None = None, how: Draw | None = None
) -> Inputs:
    """Inputs for a model, the same for the same seed on any machine; see `Interface.draw`."""
    return Interface(model).draw(seed=seed, sizes=sizes, how=how)


@dataclass(frozen=True, slots=True)
class _Taken:
    """One input.

    Attributes:
        name: Its name.
        type: Its type.
        dims: Its dimensions.
        denotations: What each stands for, as far as the model says it.
        below: The size of the smallest table that its integers are indices into.
        sizes: Whether its integers may be sizes, counts or positions of something.
        telling: An integer for which a condition holds that compares the input with a constant; for inputs of one
            element only, where a branch may hang on it.
    """

    name: str
    type: ir.TypeProtocol | None
    dims: list[symbolic.Dim]
    denotations: list[str | None]
    below: int | None
    telling: int | None
    sizes: bool

    @property
    def is_single(self) -> bool:
        """Whether it has one element, whatever is drawn."""
        return all(dim == 1 for dim in self.dims)

    @property
    def is_bool(self) -> bool:
        """Whether it is a tensor of bools."""
        return isinstance(self.type, ir.TensorType) and self.type.dtype == ir.DataType.BOOL


class Interface:
    """What a model takes. The model may change afterwards.

    Args:
        model: The model; inputs that are initializers too are left out.
        token: Cancellation token from being made.

    Attributes:
        takes_nothing: Whether inputs without elements may be asked for: not where the specification leaves the answer
            undefined, or ONNX Runtime is known to give a wrong one or to end the process.
    """

    def __init__(self, model: ir.Model, token: CancellationToken = NEVER) -> None:
        nodes = (node for graph in scope.graphs(model, token) for node in token.checked(graph))
        self.takes_nothing = not any(_is_lost_without_elements(node) for node in nodes)
        self._taken = [
            _Taken(
                value.name or "",
                value.type,
                _dims(value),
                _denotations(value),
                *_integers(value),
                _sizes_something(value),
            )
            for value in model.graph.inputs
            if not value.is_initializer()
        ]

    @property
    def names(self) -> list[str]:
        """What must be given."""
        return [one.name for one in self._taken]

    @property
    def tells(self) -> bool:
        """Whether `Draw.told` makes a difference."""
        return any(one.is_single and (one.telling is not None or one.is_bool) for one in self._taken)

    @property
    def has_floats(self) -> bool:
        """Whether an input holds floats."""
        types = (one.type for one in self._taken)
        return any(type_ is not None and type_.dtype.is_floating_point() for type_ in types)

    @property
    def has_wide_integers(self) -> bool:
        """Whether an input's integers have more than 8 bits, of which all values are drawn anyway, and are no mask."""
        return any(is_wide_integer(one.name, one.type.dtype) for one in self._taken if one.type is not None)

    @property
    def has_free_integers(self) -> bool:
        """Whether some of these are neither indices nor sizes, as far as can be seen."""
        return any(
            is_free_integer(one.name, one.type.dtype, below=one.below, sizes=one.sizes)
            for one in self._taken
            if one.type is not None
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of all inputs' dimensions, each once; the first is the batch size, most often."""
        return tuple(dict.fromkeys(_symbols(self._taken)))

    @property
    def free_symbols(self) -> tuple[str, ...]:
        """Those of which none is, by its name, the sum of others."""
        names = list(self.symbols)
        return tuple(name for name in names if not _is_sum(name, names))

    def draw(self, *, seed: int = 0, sizes: Mapping[str, int] | None = None, how: Draw | None = None) -> Inputs:
        """Inputs, the same for the same seed on any machine.

        Args:
            seed: Two seeds give different numbers of the same shapes.
            sizes: Sizes of symbolic dimensions, by the symbol's name or a denotation; the others are chosen.
            how: One of `attempts`, `further`, or another.

        Returns:
            An array for each input, a list of arrays for a sequence. bfloat16 and the like are ``ml_dtypes`` arrays.

        Raises:
            UsageError: An input cannot be drawn: its type is unknown, or it would be enormous.
        """
        how = how or Draw()
        bound = self._bound(sizes, how)
        drawn: Inputs = {}
        for one in self._taken:
            type_ = one.type
            while isinstance(type_, ir.OptionalType):
                type_ = type_.elem_type
            if type_ is None or type_.dtype == ir.DataType.UNDEFINED:
                raise UsageError(f"the type of input {quoted(one.name)} is unknown")
            rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(one.name.encode())]))
            shape = bound.shape(one)
            most = _ELEMENTS_AT_MOST if how.length is None else _LONG_AT_MOST
            if np.prod(shape, dtype=float) > most:
                raise UsageError(f"input {quoted(one.name)} would have the shape {list(shape)}")
            count = 2 if isinstance(type_, ir.SequenceType) else 1
            if one.is_single and one.is_bool:
                arrays = [np.full(shape, how.told)] * count
            elif type_.dtype.is_integer():
                arrays = [self._integers(rng, one, type_.dtype, shape, how) for _ in range(count)]
            else:
                arrays = [drawn_of(rng, type_.dtype, shape, how.floats, how.octaves) for _ in range(count)]
            drawn[one.name] = arrays if isinstance(type_, ir.SequenceType) else arrays[0]
        return drawn

    @staticmethod
    def _integers(
        rng: np.random.Generator, one: _Taken, dtype: ir.DataType, shape: tuple[int, ...], how: Draw
    ) -> Array:
        natural = how.integers not in ("small", "binary", "zero", "one", "signed", "extreme")
        if natural and one.is_single and one.telling is not None and how.told:
            told = min(max(one.telling, int(dtype.min)), int(dtype.max))
            return np.full(shape, told).astype(dtype.numpy())
        return integers_of(rng, dtype, shape, how.integers, name=one.name, below=one.below, sizes=one.sizes)

    def elements(self, sizes: Mapping[str, int] | None, how: Draw) -> int:
        """How many elements `draw` would draw; of sequences, of one of their tensors."""
        bound = self._bound(sizes, how)
        return sum(math.prod(bound.shape(one)) for one in self._taken)

    def sizes(self, sizes: Mapping[str, int] | None, how: Draw) -> dict[str, int]:
        """The sizes of all symbols that `draw` takes."""
        return self._bound(sizes, how).sizes

    def resized(self, shapes: Mapping[str, tuple[int, ...]], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shapes that inputs of some shapes get where symbols have other sizes.

        Args:
            shapes: By input; a symbol is as large as it is there, unless that follows from ``sizes``.
            sizes: As `draw` takes them.
        """
        known: dict[str, int] = {}
        for one in self._taken:
            for dim, size in zip(one.dims, shapes.get(one.name, ()), strict=False):
                for name in symbolic.symbols(dim):
                    if symbolic.substitute(dim, {name: size}) == size:
                        known.setdefault(name, size)
        bound = _Sizes(self._taken, dict(sizes), Draw(), known)
        return {
            one.name: tuple(
                size if symbolic.symbols(dim) or denotation in sizes else shapes[one.name][axis]
                for axis, (dim, denotation, size) in enumerate(
                    zip(one.dims, one.denotations, bound.shape(one), strict=True)
                )
            )
            for one in self._taken
            if len(shapes.get(one.name, ())) == len(one.dims)
        }

    def check(self, inputs: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Refuse inputs whose shapes are others than sizes that the caller has chosen.

        Args:
            inputs: Arrays by name.
            sizes: As `draw` takes them.

        Raises:
            UsageError: They contradict each other.
        """
        shapes = {name: np.shape(value) for name, value in inputs.items() if not isinstance(value, list)}
        for name, shape in self.resized(shapes, sizes).items():
            if shape != shapes[name]:
                said = ", ".join(f"{key}={size}" for key, size in sizes.items())
                raise UsageError(
                    f"input {quoted(name)} has the shape {list(shapes[name])}, but where {said} it is {list(shape)}"
                )

    def _bound(self, sizes: Mapping[str, int] | None, how: Draw) -> _Sizes:
        given = dict(sizes or {})
        if how.empty is not None:
            given[how.empty] = 0
        return _Sizes(self._taken, given, how)


def _is_lost_without_elements(node: ir.Node) -> bool:
    """Whether ONNX Runtime cannot be asked what a node gives for inputs without elements.

    What a Reshape infers beside a 0 under ``allowzero`` is undefined, and ONNX Runtime does infer something; version
    1.31 forgets negative axes of reductions that drop their axes, and its LSTM and GRU end the process.
    """
    if node.domain:
        return False
    if node.op_type in ("GRU", "LSTM"):
        return True
    if node.op_type == "Reshape":
        return _integer(node, "allowzero", 0) != 0 and _may_be_negative(node)
    if node.op_type.startswith("Reduce") and _integer(node, "keepdims", 1) != 1:
        axes = node.attributes.get("axes")
        if axes is None:
            return _may_be_negative(node)
        return axes.is_ref() or any(axis < 0 for axis in axes.as_ints())
    return False


def _integer(node: ir.Node, name: str, default: int) -> int | None:
    """An integer attribute; None if a function's caller decides it."""
    attribute = node.attributes.get(name)
    if attribute is None:
        return default
    return None if attribute.is_ref() else attribute.as_int()


def _may_be_negative(node: ir.Node) -> bool:
    """Whether a node's second input may hold negative numbers."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return False
    numbers = semantics.constant_tensor(node.inputs[1])
    return numbers is None or bool((numbers.numpy() < 0).any())


class _Sizes:
    """One size for each symbol, over all inputs.

    Args:
        inputs: All.
        given: Sizes that the caller has chosen, by the symbol's name or a denotation.
        how: How the others are chosen.
        known: What they are instead, as far as that is known.
    """

    def __init__(
        self, inputs: list[_Taken], given: dict[str, int], how: Draw, known: Mapping[str, int] | None = None
    ) -> None:
        self._how = how
        self._given = given
        names = list(dict.fromkeys(_symbols(inputs)))
        self.sizes: dict[str, int] = _by_denotation(inputs, given) | given
        wanted = {
            name: known[name] if known and name in known else _wanted(name, i, how) for i, name in enumerate(names)
        }
        for name in names:
            if name in self.sizes:
                self._share(self.sizes[name], _is_sum(name, names), wanted)
        if how.length is not None:
            last = (name for one in inputs if len(one.dims) > 1 for name in symbolic.symbols(one.dims[-1]))
            self.sizes = dict.fromkeys(last, how.length) | self.sizes
        for name in names:
            if name not in self.sizes and not _is_sum(name, names):
                self.sizes[name] = wanted[name]
        for name in names:
            if name not in self.sizes:
                self.sizes[name] = sum(self.sizes[part] for part in _is_sum(name, names))

    def _share(self, total: int, parts: list[str], wanted: Mapping[str, int]) -> None:
        """Give the parts of a sum sizes: the wanted ones as far as they fit, none 0 if they can; the first the rest."""
        fixed = [self.sizes[part] for part in parts if part in self.sizes]
        free = [part for part in parts if part not in self.sizes]
        rest = total - sum(fixed)
        for i in reversed(range(len(free))):
            share = rest if i == 0 else max(min(wanted[free[i]], rest - i), min(rest, 1))
            self.sizes[free[i]] = max(share, 0)
            rest -= share

    def shape(self, one: _Taken) -> tuple[int, ...]:
        shape = []
        for axis, dim in enumerate(one.dims):
            size = symbolic.substitute(dim, {name: self.sizes[name] for name in symbolic.symbols(dim)})
            denotation = one.denotations[axis]
            if not isinstance(size, int) and denotation is not None and denotation in self._given:
                size = self._given[denotation]
            if not isinstance(size, int):
                size = self._open(axis, axis == len(one.dims) - 1)
            shape.append(max(size, 0))
        return tuple(shape)

    def _open(self, axis: int, is_last: bool) -> int:
        """The size of a dimension of which nothing is known: alike where they stand on the same axis."""
        how = self._how
        if how.length is not None:
            return how.length if is_last and axis > 0 else 1
        if axis == 0:
            return min(how.size or 2, 2)
        return how.size or 4


def _symbols(inputs: list[_Taken]) -> Iterator[str]:
    """The symbols of inputs, in order, as often as they stand there."""
    return (name for one in inputs for dim in one.dims for name in sorted(symbolic.symbols(dim)))


def _dims(value: ir.Value) -> list[symbolic.Dim]:
    if value.shape is None:
        return [2, 3]
    return [symbolic.canonical(dim if isinstance(dim, int) else dim.value) for dim in value.shape]


def _denotations(value: ir.Value) -> list[str | None]:
    if value.shape is None:
        return [None, None]
    return [value.shape.get_denotation(axis) for axis in range(len(value.shape))]


def _by_denotation(inputs: list[_Taken], given: Mapping[str, int]) -> dict[str, int]:
    """The sizes of symbols whose dimensions have a denotation that the caller has given a size."""
    found: dict[str, int] = {}
    for one in inputs:
        for dim, denotation in zip(one.dims, one.denotations, strict=True):
            if denotation is not None and denotation in given:
                names = symbolic.symbols(dim)
                found.update({name: given[denotation] for name in names if symbolic.substitute(dim, {name: 7}) == 7})
    return found


def _is_sum(name: str, names: list[str]) -> list[str]:
    """The symbols whose sum an attention mask's length is, in the names that exporters give."""
    parts = name.split("_plus_") if "_plus_" in name else []
    if not parts and ("total" in name or "cache" in name):
        parts = [
            next((other for other in names if other != name and word in other and "total" not in other), "")
            for word in ("past", "seq")
        ]
    return parts if parts and all(part in names and part != name for part in parts) else []


def _wanted(name: str, position: int, how: Draw) -> int:
    if how.size is not None:
        return how.size
    natural = _natural_size(name, position)
    if how.odd is None:
        return natural
    return 1 if position % 2 == how.odd else natural + (32 if natural == 32 else 3)


def _natural_size(name: str, position: int) -> int:
    text = name.lower()
    if "batch" in text or text in ("n", "b", "bs"):
        return 2
    if "past" in text:
        return 5
    if "seq" in text or "len" in text or text in ("s", "t", "time"):
        return 8
    if text in _SPATIAL or "height" in text or "width" in text:
        return 32
    return (2, 6, 4, 7, 3)[position % 5]


def _integers(value: ir.Value) -> tuple[int | None, int | None]:
    """The smallest table that an input's integers are indices into, and what tells them apart; None for neither."""
    smallest: int | None = None
    telling: int | None = None
    seen: set[ir.Value] = {value}
    pending = [value]
    while pending and len(seen) < _STEPS:
        current = pending.pop()
        for node, index in current.uses():
            table = _indexed(node, index)
            if table is not None:
                smallest = table if smallest is None else min(smallest, table)
            if telling is None:
                telling = _told_apart(node, index)
            if node.op_type in _KEPT_BY and not (node.op_type == "Gather" and index == 1):
                fresh = [output for output in node.outputs if output not in seen]
                seen.update(fresh)
                pending.extend(fresh)
    return smallest, telling


def _sizes_something(value: ir.Value) -> bool:
    """Whether an input's integers may be sizes, counts or positions of something: conservative."""
    if value.type is None or not value.type.dtype.is_integer():
        return False
    assert isinstance(value.graph, ir.Graph)
    given = set(value.graph.outputs)
    seen: set[ir.Value] = {value}
    pending = [value]
    while pending:
        current = pending.pop()
        of_a_body = current.is_graph_output() and current not in given  # which may tell how often something is done
        if len(seen) > _STEPS or of_a_body:
            return True
        for node, index in current.uses():
            if node.domain or any(True for _ in semantics.subgraphs(node)) or node.op_type in _SIZED_BY_THE_FIRST:
                return True
            if index > 0 and node.op_type not in _ALL_ARE_DATA:
                return True
            if node.op_type not in SHAPE_QUERIES:
                fresh = [output for output in node.outputs if output not in seen]
                seen.update(fresh)
                pending.extend(fresh)
    return False


def _told_apart(node: ir.Node, index: int) -> int | None:
    """An integer for which a comparison of input ``index`` with a constant holds."""
    beyond = _COMPARED.get(node.op_type)
    if beyond is None or node.domain or len(node.inputs) != 2:
        return None
    other = node.inputs[1 - index]
    tensor = None if other is None else semantics.constant_tensor(other)
    if tensor is None or tensor.size != 1 or not tensor.dtype.is_integer():
        return None
    return int(tensor.numpy().item()) + (beyond if index == 0 else -beyond)


def _indexed(node: ir.Node, index: int) -> int | None:
    """The size of the axis that input ``index`` of a node chooses from."""
    if node.op_type not in ("Gather", "GatherElements") or index != 1 or node.inputs[0] is None:
        return None
    table = node.inputs[0]
    shape = table.const_value.shape if table.const_value is not None else table.shape
    if shape is None:
        return None
    axis: int = node.attributes.get_int("axis", 0)
    dims = list(shape)
    dim = dims[axis] if -len(dims) <= axis < len(dims) else None
    return dim if isinstance(dim, int) and dim > 0 else None


__all__ = ["Draw", "Inputs", "Interface", "Recorded", "attempts", "draw_inputs", "further", "thorough"]
