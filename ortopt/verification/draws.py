"""Ways to draw inputs: the first ones to try, those that show what natural inputs hide, and many more."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from ortopt.verification.numbers import FAR, FARTHEST, NEAR, FloatRange, IntegerRange

_OTHERS: Final[tuple[FloatRange, ...]] = ("normal", "unit", "coarse", "nan", "inf")
_OTHER_INTEGERS: Final[tuple[IntegerRange, ...]] = ("signed", "extreme", "small", "binary", "zero", "one")


@dataclass(frozen=True, slots=True)
class Draw:
    """One way to draw inputs.

    Attributes:
        size: The size of every symbol, and of dimensions without one but the first of an input, which is 2 at most;
            None chooses by the symbol's name.
        length: The size of the last dimension of each input of several, as far as it is open: of a signal's samples,
            say, of which a frame takes hundreds. Other symbols are natural, or of that size, what else is open is 1.
        integers: ``natural`` respects what is known of an input's use, ``signed`` counts from the end, too, and is
            larger where nothing is known, ``extreme`` goes to the bounds of the dtype where the model may survive that;
            the others are what to try instead.
        floats: ``normal``, uniform between 0 and 1 (``unit``), ``wide``: magnitudes on a log scale, the largest of them
            negative, ``positive``: likewise without a sign, ``coarse``: halves, so that there are zeros, ones, ties,
            and numbers at a threshold, or normal with ``nan`` or infinities (``inf``) in single places.
        octaves: How far the magnitudes of ``wide`` and ``positive`` floats go from 1, both ways.
        conditions_hold: Whether inputs of one element that are compared with a constant are such that the comparison
            holds, and bools are true: branches depend on them.
        sizes: Symbols with their sizes, whatever the others are.
        odd: Whether symbols' sizes are others than the natural ones, and each second symbol's is 1: those of the first,
            third and so on if it is 0, of the others if it is 1.
    """

    size: int | None = None
    length: int | None = None
    integers: IntegerRange = "natural"
    floats: FloatRange = "normal"
    octaves: int = NEAR
    conditions_hold: bool = True
    sizes: tuple[tuple[str, int], ...] = ()
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
        draw = dataclasses.replace(self, octaves=min(self.octaves, NEAR), integers=integers)
        return None if draw == self or self.floats in ("positive", "nan", "inf") else draw


def additional_draws(
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


def thorough_draws(*, fine: bool, symbols: int) -> Iterator[Draw]:
    """Many more ways, for a thorough verification.

    Args:
        fine: As `additional_draws` takes it.
        symbols: As `additional_draws` takes it.
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
        yield Draw(conditions_hold=False, odd=odd)
    for size in (1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33):
        yield Draw(size=size)


def initial_draws() -> Iterator[Draw]:
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
    for length in (1024, 16000):
        yield Draw(size=1, length=length)  # what was exported with a single signal may have a batch of 1 written in
