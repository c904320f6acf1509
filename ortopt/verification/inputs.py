"""Inputs that a model accepts, drawn from a seed: sizes for its symbols, integers that fit where they are used.

A user has no inputs at hand when a model is verified. What is known is used: a symbol has one size wherever it occurs,
an index into a table of 512 rows is below 512, a mask is of zeros and ones. What is not known is tried:
`ortopt.verification.draws` has several ways to draw, the most natural first.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnx_ir as ir

from ortopt.analysis.dimensions import Shapes, dimension_names, summands
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import InvalidModelError, UsageError
from ortopt.graph import scope, symbolic
from ortopt.terminal_text import quoted
from ortopt.verification.draws import Draw
from ortopt.verification.model_inputs import ModelInput, is_undefined_without_elements
from ortopt.verification.numbers import drawn_of, integers_of, is_free_integer, is_wide_integer

_SPATIAL: Final = ("height", "width", "h", "w", "hh", "ww", "image_size", "depth")
_BATCH: Final = 2  # images or texts
_LARGE: Final = 64  # sizes from which a batch stays small: it would show nothing more, and take minutes


class DimensionSizes:
    """One size for each symbol, over all inputs.

    Args:
        inputs: All.
        chosen: Sizes that the caller has chosen, by the symbol's name or a denotation; ``x[2]`` is a dimension without.
        how: How the others are chosen.
        known: What they are instead, as far as that is known.
    """

    def __init__(
        self, inputs: list[ModelInput], chosen: dict[str, int], how: Draw, known: Mapping[str, int] | None = None
    ) -> None:
        self._how = how
        self._chosen = chosen
        names = list(dict.fromkeys(symbols_of(inputs)))
        self.sizes: dict[str, int] = _by_denotation(inputs, chosen) | chosen
        wanted = {
            name: known[name] if known and name in known else _wanted(name, i, how) for i, name in enumerate(names)
        }
        for name in names:
            if name in self.sizes:
                self._share(self.sizes[name], summands(name, names), wanted)
        if how.length is not None:
            last = (name for each in inputs if len(each.dims) > 1 for name in symbolic.symbols(each.dims[-1]))
            self.sizes = dict.fromkeys(last, how.length) | self.sizes
        for name in names:
            if name not in self.sizes and not summands(name, names):
                self.sizes[name] = wanted[name]
        for name in names:
            if name not in self.sizes:
                self.sizes[name] = sum(self.sizes[part] for part in summands(name, names))

    def _share(self, total: int, parts: list[str], wanted: Mapping[str, int]) -> None:
        """Give the parts of a sum sizes: the wanted ones as far as they fit, none 0 if they can; the first the rest."""
        fixed = [self.sizes[part] for part in parts if part in self.sizes]
        free = [part for part in parts if part not in self.sizes]
        rest = total - sum(fixed)
        for i in reversed(range(len(free))):
            share = rest if i == 0 else max(min(wanted[free[i]], rest - i), min(rest, 1))
            self.sizes[free[i]] = max(share, 0)
            rest -= share

    def shape(self, model_input: ModelInput) -> tuple[int, ...]:
        """The shape of an input."""
        shape = []
        for axis, dim in enumerate(model_input.dims):
            size = symbolic.substitute(dim, {name: self.sizes[name] for name in symbolic.symbols(dim)})
            denotation = model_input.denotations[axis]
            if not isinstance(size, int) and denotation is not None and denotation in self._chosen:
                size = self._chosen[denotation]
            if not isinstance(size, int):
                (name, *_) = dimension_names(model_input.name, axis, dim) or ("",)
                size = self._chosen.get(name, size)
            if not isinstance(size, int):
                size = self._open(axis, axis == len(model_input.dims) - 1)
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


def symbols_of(inputs: list[ModelInput]) -> Iterator[str]:
    """The symbols of inputs, in order, as often as they stand there."""
    return (name for each in inputs for dim in each.dims for name in sorted(symbolic.symbols(dim)))


def _by_denotation(inputs: list[ModelInput], chosen: Mapping[str, int]) -> dict[str, int]:
    """The sizes of symbols whose dimensions have a denotation for which the caller has chosen a size."""
    sizes: dict[str, int] = {}
    for each in inputs:
        for dim, denotation in zip(each.dims, each.denotations, strict=True):
            if denotation is not None and denotation in chosen:
                names = symbolic.symbols(dim)
                sizes.update({name: chosen[denotation] for name in names if symbolic.substitute(dim, {name: 7}) == 7})
    return sizes


def _wanted(name: str, position: int, how: Draw) -> int:
    natural = _natural_size(name, position)
    if how.size is not None:
        return natural if how.size >= _LARGE and _is_batch(name.lower()) else how.size
    if how.odd is None:
        return natural
    return 1 if position % 2 == how.odd else natural + (32 if natural == 32 else 3)


def _is_batch(text: str) -> bool:
    return "batch" in text or text in ("n", "b", "bs")


def _natural_size(name: str, position: int) -> int:
    text = name.lower()
    if _is_batch(text):
        return _BATCH
    if "past" in text:
        return 5
    if "seq" in text or "len" in text or text in ("s", "t", "time"):
        return 8
    if text in _SPATIAL or "height" in text or "width" in text:
        return 32
    return (2, 6, 4, 7, 3)[position % 5]


Array = np.ndarray[Any, Any]
Inputs: TypeAlias = dict[str, Any]
"""By input: an array, or a list of arrays for a sequence."""

_MAX_ELEMENTS: Final = 1 << 28
_MAX_LONG_ELEMENTS: Final = 1 << 22  # elements of an input whose last dimension is tried to be long


class Recorded(dict[str, Any]):
    """Inputs that were recorded for a model, by name: where they do not fit, others are drawn."""


def draw_inputs(
    model: ir.Model, *, seed: int = 0, sizes: Mapping[str, int] | None = None, how: Draw | None = None
) -> Inputs:
    """Inputs for a model, the same for the same seed on any machine; see `Interface.draw`."""
    return Interface(model).draw(seed=seed, sizes=sizes, how=how)


class Interface:
    """The inputs of a model. The model may change afterwards.

    Args:
        model: The model; inputs that are initializers too are left out.
        token: Cancellation token.
        shapes: Shapes of inputs, whatever they declare; None is a size that they declare.

    Attributes:
        takes_empty: Whether inputs without elements may be drawn: not where the specification leaves the answer
            undefined, or ONNX Runtime is known to give a wrong one or to end the process.
    """

    def __init__(self, model: ir.Model, token: CancellationToken = NEVER, shapes: Shapes | None = None) -> None:
        nodes = (node for graph in scope.graphs(model, token) for node in token.checked(graph))
        self.takes_empty = not any(is_undefined_without_elements(node) for node in nodes)
        self._shapes = shapes or {}
        self._inputs = [
            ModelInput.of(value, self._shapes.get(value.name or ""))
            for value in model.graph.inputs
            if not value.is_initializer()
        ]

    @property
    def names(self) -> list[str]:
        """The names of the inputs that must be given."""
        return [each.name for each in self._inputs]

    @property
    def has_conditions(self) -> bool:
        """Whether `Draw.conditions_hold` makes a difference."""
        return any(each.is_single and (each.satisfying is not None or each.is_bool) for each in self._inputs)

    @property
    def has_floats(self) -> bool:
        """Whether an input holds floats."""
        types = (each.type for each in self._inputs)
        return any(type_ is not None and type_.dtype.is_floating_point() for type_ in types)

    @property
    def has_wide_integers(self) -> bool:
        """Whether an input's integers have more than 8 bits, of which all values are drawn anyway, and are no mask."""
        return any(is_wide_integer(each.name, each.type.dtype) for each in self._inputs if each.type is not None)

    @property
    def has_free_integers(self) -> bool:
        """Whether some of these are neither indices nor sizes, as far as can be seen."""
        return any(
            is_free_integer(each.name, each.type.dtype, below=each.below, sizes=each.sizes)
            for each in self._inputs
            if each.type is not None
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of all inputs' dimensions, each once; the first is the batch size, most often."""
        return tuple(dict.fromkeys(symbols_of(self._inputs)))

    @property
    def free_symbols(self) -> tuple[str, ...]:
        """Those of which none is, by its name, the sum of others."""
        names = list(self.symbols)
        return tuple(name for name in names if not summands(name, names))

    def draw(self, *, seed: int = 0, sizes: Mapping[str, int] | None = None, how: Draw | None = None) -> Inputs:
        """Inputs, the same for the same seed on any machine.

        Args:
            seed: Two seeds give different numbers of the same shapes.
            sizes: Sizes of symbolic dimensions, by the symbol's name or a denotation; the others are chosen.
            how: A way to draw (see `ortopt.verification.draws`).

        Returns:
            An array for each input, a list of arrays for a sequence. bfloat16 and the like are ``ml_dtypes`` arrays.

        Raises:
            UsageError: An input cannot be drawn: its type is unknown, or it would be enormous.
        """
        how = how or Draw()
        bound = self._bound(sizes, how)
        drawn: Inputs = {}
        for each in self._inputs:
            type_ = each.type
            while isinstance(type_, ir.OptionalType):
                type_ = type_.elem_type
            if type_ is None or type_.dtype == ir.DataType.UNDEFINED:
                raise UsageError(f"the type of input {quoted(each.name)} is unknown")
            rng = np.random.Generator(np.random.PCG64([seed, zlib.crc32(each.name.encode())]))
            shape = bound.shape(each)
            most = _MAX_ELEMENTS if how.length is None else _MAX_LONG_ELEMENTS
            if np.prod(shape, dtype=float) > most:
                raise UsageError(f"input {quoted(each.name)} would have the shape {list(shape)}")
            count = 2 if isinstance(type_, ir.SequenceType) else 1
            if each.is_single and each.is_bool:
                arrays = [np.full(shape, how.conditions_hold)] * count
            elif type_.dtype.is_integer():
                arrays = [self._integers(rng, each, type_.dtype, shape, how) for _ in range(count)]
            else:
                arrays = [drawn_of(rng, type_.dtype, shape, how.floats, how.octaves) for _ in range(count)]
            drawn[each.name] = arrays if isinstance(type_, ir.SequenceType) else arrays[0]
        return drawn

    @staticmethod
    def _integers(
        rng: np.random.Generator, each: ModelInput, dtype: ir.DataType, shape: tuple[int, ...], how: Draw
    ) -> Array:
        natural = how.integers not in ("small", "binary", "zero", "one", "signed", "extreme")
        if natural and each.is_single and each.satisfying is not None and how.conditions_hold:
            number = min(max(each.satisfying, int(dtype.min)), int(dtype.max))
            return np.full(shape, number).astype(dtype.numpy())
        return integers_of(rng, dtype, shape, how.integers, name=each.name, below=each.below, sizes=each.sizes)

    def elements(self, sizes: Mapping[str, int] | None, how: Draw) -> int:
        """How many elements `draw` would draw; of sequences, of one of their tensors."""
        bound = self._bound(sizes, how)
        return sum(math.prod(bound.shape(each)) for each in self._inputs)

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
        for each in self._inputs:
            for dim, size in zip(each.dims, shapes.get(each.name, ()), strict=False):
                for name in symbolic.symbols(dim):
                    if symbolic.substitute(dim, {name: size}) == size:
                        known.setdefault(name, size)
        bound = DimensionSizes(self._inputs, dict(sizes), Draw(), known)
        return {
            each.name: tuple(
                size if symbolic.symbols(dim) or denotation in sizes else shapes[each.name][axis]
                for axis, (dim, denotation, size) in enumerate(
                    zip(each.dims, each.denotations, bound.shape(each), strict=True)
                )
            )
            for each in self._inputs
            if len(shapes.get(each.name, ())) == len(each.dims)
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
        for name, shape in shapes.items():
            wanted = self._shapes.get(name, shape)
            if len(wanted) != len(shape) or any(
                size not in (None, own) for size, own in zip(wanted, shape, strict=True)
            ):
                asked = ", ".join("_" if size is None else str(size) for size in wanted)
                raise UsageError(f"input {quoted(name)} has the shape {list(shape)}, but [{asked}] is asked for")
        for name, shape in self.resized(shapes, sizes).items():
            if shape != shapes[name]:
                chosen = ", ".join(f"{key}={size}" for key, size in sizes.items())
                raise UsageError(
                    f"input {quoted(name)} has the shape {list(shapes[name])}, but where {chosen} it is {list(shape)}"
                )

    def _bound(self, sizes: Mapping[str, int] | None, how: Draw) -> DimensionSizes:
        return DimensionSizes(self._inputs, dict(sizes or {}) | dict(how.sizes), how)


def read_inputs(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of an .npz file, by input name.

    Args:
        path: The file.

    Raises:
        InvalidModelError: It cannot be read, or holds something else.
    """
    import numpy as np

    label = quoted(os.fspath(path))
    try:
        with Path(path).open("rb") as file:
            if not zipfile.is_zipfile(file):
                raise ValueError("it holds something else")  # noqa: TRY301 -- one message for all that is no .npz
            file.seek(0)
            arrays = np.load(file, allow_pickle=False)
            inputs = dict(arrays) if isinstance(arrays, np.lib.npyio.NpzFile) else {}
        if not inputs or not all(isinstance(array, np.ndarray) for array in inputs.values()):
            raise ValueError("it holds something else")  # noqa: TRY301 -- one message for all that is no .npz
    except OSError as error:
        raise InvalidModelError(f"{label}: {error.strerror or error}") from error
    except Exception as error:  # whatever numpy, zipfile and zlib say of a broken file
        raise InvalidModelError(f"{label}: no .npz file of plain arrays ({error})") from error
    return inputs
