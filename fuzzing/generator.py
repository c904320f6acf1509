"""Models from seeds."""

from __future__ import annotations

import random
from dataclasses import dataclass

from onnx import ModelProto

import fuzzing.nested
import fuzzing.patterns
from fuzzing.writer import BOOL, F16, F32, F64, I64, NEWEST_OPSET, Array, Sheet, Unsuitable, Writer, draw_feeds, finish

_OPSETS = (13, 14, 15, 16, 17, 17, 18, 18, 19, 20, 21, 21, 22, 23, 24, 25, NEWEST_OPSET)
_ATTEMPTS = 20


@dataclass(frozen=True)
class Case:
    """A model and what to run it with.

    Attributes:
        model: The model.
        feeds: Input sets; the model runs on the first, perhaps not on the others.
        special: How many of the last of them have NaN, infinities and the like.
        label: Where it comes from.
    """

    model: ModelProto
    feeds: list[dict[str, Array]]
    special: int = 0
    label: str = ""


def generate(seed: int) -> Case:
    """The model of a seed, the same on any machine."""
    for attempt in range(_ATTEMPTS):
        try:
            return _generated(random.Random(f"{seed}/{attempt}"), seed)
        except Unsuitable:
            continue
    raise Unsuitable(f"no model comes of seed {seed}")


def _generated(draw: random.Random, seed: int) -> Case:
    opset, dtype = draw.choice(_OPSETS), draw.choices((F32, F64, F16), (8, 1, 1))[0]
    sizes = {"N": draw.choice((1, 2, 2, 3)), "S": draw.choice((1, 3, 3, 4)), "Z": draw.choice((0, 2))}
    if sizes["N"] == sizes["S"]:
        sizes["S"] = 5  # else a value of N rows is taken for one of S: that fits until the sizes are others
    sheet = Sheet(draw, opset, dtype, sizes)
    writer = Writer(sheet)
    _inputs(writer)
    fuzzing.nested.steps(writer, draw.choice((2, 4, 6, 8, 12, 16)))
    model = finish(writer, typed=draw.random() < 0.3)
    feeds = [draw_feeds(sheet.inputs, sheet.sizes, seed)]
    symbols = {symbol for one in sheet.inputs for symbol in one.symbols if symbol}
    if symbols:
        other = {"N": draw.choice((0, 1, 4, 5)), "S": draw.choice((1, 2, 5)), "Z": draw.choice((0, 1, 3))}
        feeds.append(draw_feeds(sheet.inputs, other, seed + 1))
    special = draw_feeds(sheet.inputs, sheet.sizes, seed + 2, special=True)
    for number, value in enumerate(sheet.overridable):
        content = sheet.numbers.standard_normal(value.shape) + number
        special[value.name] = _as(content, value.dtype)
    feeds.append(special)
    return Case(model, feeds, 1, f"seed {seed}")


def _as(content: Array, dtype: int) -> Array:
    from onnx import helper

    return content.astype(helper.tensor_dtype_to_np_dtype(dtype))


def _inputs(w: Writer) -> None:
    theme = w.one("sequence", "sequence", "image", "image", "matrix", "mixed")
    dtype = w.sheet.dtype
    batch = w.size("N", "N", 1, 2)
    if theme == "image":
        side = w.one(2, 4, 6)
        w.input(dtype, [batch, w.one(1, 2, 4, 6), side, w.one(side, 4)])
        if w.chance(0.2):
            w.input(dtype, [batch, 4, "S", "S"])
    elif theme == "sequence":
        w.input(dtype, [batch, w.size("S", "S", 4), w.one(4, 6, 8)])
        if w.chance(0.5):
            w.input(dtype, [batch, w.size("S", 4), w.one(4, 6)])
    elif theme == "matrix":
        w.input(dtype, [batch, w.one(4, 6, 3)])
    else:
        w.input(dtype, [w.size("N", "S", "Z", 0, 1, 2, 3) for _ in range(w.one(0, 1, 2, 3, 4))])
    if w.chance(0.3):
        w.input(I64, [w.size(batch, 1, 3), w.size("S", 2)][: w.one(0, 1, 2)])
    if w.chance(0.3):
        w.input(BOOL, [])
    if w.chance(0.1):
        w.input(w.one(F32, F64, F16), [batch, w.one(1, 4)])
