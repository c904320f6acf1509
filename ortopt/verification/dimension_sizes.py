"""Sizes for the symbols of a model's inputs: one for each symbol, natural by its name unless another is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ortopt.analysis.dimensions import dimension_names, summands
from ortopt.graph import symbolic
from ortopt.verification.draws import Draw
from ortopt.verification.model_inputs import ModelInput

_SPATIAL: Final = ("height", "width", "h", "w", "hh", "ww", "image_size", "depth")


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
