"""ONNX Runtime's blocked convolutions give threads whole rows: a signal is cut into pieces that are rows of an image.

They are faster than its convolutions of signals, but as an image of height 1 a signal of few channels runs on one
thread (see `ortopt.analysis.blocked_values`). The pieces overlap by the halo of a whole stage, so that each of them
is computed by itself, and what is wrong at their inner ends is cut away behind the stage. The outer ends of the first
and the last piece are those of the signal, padding and all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt import ops
from ortopt.analysis.blocked_layout import BLOCK
from ortopt.analysis.blocked_values import CHANNELS_OF_A_THREAD, is_divided
from ortopt.analysis.costs import Form
from ortopt.framework.fusions import is_faster, pays_from, speed_of
from ortopt.graph import scope, symbolic
from ortopt.graph.edit import constant
from ortopt.graph.match import Dim, array_of, dims, dtype, inputs, is_constant, need, opset, static_dims
from ortopt.options import Numerics
from ortopt.patterns.convolutions import convolution_of_images, is_convolution
from ortopt.rule import Match
from ortopt.semantics.domains import MICROSOFT
from ortopt.transformers.lowering.onnxruntime_cpu._convolutions import CONVOLUTIONS
from ortopt.transformers.lowering.onnxruntime_cpu._rules import CpuRule
from ortopt.transformers.lowering.onnxruntime_cpu._signal_stages import (
    Halo,
    Stage,
    halo_of,
    operands,
    stage_of,
)

ROWS, COLUMNS = 2, 3

VERSION: Final = 13
"""The first opset whose Split takes sizes as an operand, and whose Min and Max take integers."""

COUNTS: Final = (8, 4, 2)
"""Into how many pieces a signal is cut: the first that pays."""

ON_ONE_THREAD: Final = Form("", "Conv", "of signals as images, on one thread")

IN_ROWS: Final = Form("", "Conv", "of a stage in rows")

OF_LITTLE_WORK_IN_ROWS: Final = Form("", "Conv", "of a stage of little work in many rows")
"""Cut more often than for two threads."""

IN_BLOCKS: Final = Form("", "Conv", "of rows of signals")
"""Each thread has a row of its own."""

CUT: Final = Form("", "Concat", "of rows of signals")
"""The time of an element that is cut out or joined. Threads do not divide it: in this time two of them do nearly three
times as many multiplications as one."""

BUSY_THREADS: Final = 8
"""Threads that must have something to do in other stages."""

TYPICAL_PERIODS: Final = 64
"""What a symbol in a length is taken for: half a second or a second of spectrogram."""


class SignalRowsConversion(CpuRule[Match]):
    """``Conv(Conv(x))`` of signals → the same of images, whose rows are overlapping pieces of the signal.

    The later stages of vocoders gain with one thread and with several. A vocoder whose length is open gains from some
    frames on, and loses a little for fewer.
    """

    roots = CONVOLUTIONS
    looks_downstream = True
    produces = ((MICROSOFT, "FusedConv"), (MICROSOFT, "Gelu"), (MICROSOFT, "QuickGelu"))
    fuses = ()
    weighs = (ON_ONE_THREAD, IN_ROWS, OF_LITTLE_WORK_IN_ROWS, IN_BLOCKS, CUT)
    numerics = Numerics.REORDERED

    def match(self, root: ir.Node) -> Match:
        """A stage of convolutions that would run on one thread, and is much longer than its halo."""
        options = scope.of_node(root).options
        need(options.for_threads != 1, "the result runs with one thread", root)
        need(opset(root, "") >= VERSION, "Split and Min are those of older opsets", root)
        batch, _, length = dims(root.outputs[0], 3)
        need(not isinstance(batch, int) or batch == 1, "the signals of a batch are divided among threads", root)
        likely = _likely(length)
        need(likely > 0, "the signals are empty, or of a length that is not known", root)
        speed = _speed(root, _sizes(root)[0], halo_of(root, BLOCK), likely, COUNTS[-1])
        need(_pays(root, IN_ROWS, speed), "its halo is too large for signals of this length", root)
        need(_is_alone(root, math.prod(_sizes(root)) * likely), "its kernel runs on several threads as it is", root)
        stage = stage_of(root, BLOCK)
        need(2 * _work(stage, likely) > _work(stage), "most of its kernels run on several threads as they are", root)
        rows = _rows(stage, likely)
        return Match(stage.nodes, lambda: _in_rows(stage, rows), stage.exits)


def _in_rows(stage: Stage, rows: int) -> dict[ir.Value, ir.Value]:
    """Cut what the stage reads, compute it in rows, and join what comes out."""
    version = opset(stage.nodes[0], "")
    if isinstance(stage.length, int):
        cuts = fixed_cuts(stage.length, stage.halo, rows)
    else:
        cuts = computed_cuts(stage.entries[0], stage.halo, rows)
    images = {value: cuts.cut(value, version) for value in stage.entries}
    for node in stage.nodes:
        images[node.outputs[0]] = _of_images(node, images).outputs[0]
    return {value: cuts.joined(images[value], version) for value in stage.exits}


class Cuts(Struct, frozen=True):
    """Where the pieces of a signal begin and end, and what of their results stays, as operands of Slice.

    Attributes:
        taken: For each piece, where it begins and ends in the signal.
        kept: For each row, the row and the column where what stays of it begins, and where it ends.
    """

    taken: tuple[tuple[ir.Value, ir.Value], ...]
    kept: tuple[tuple[ir.Value, ir.Value], ...]

    def cut(self, signal: ir.Value, version: int) -> ir.Value:
        """The image of a signal."""
        row = ops.unsqueezed(signal, [ROWS], version)
        along = constant([COLUMNS])
        parts = [ir.node("Slice", [row, start, stop, along]).outputs[0] for start, stop in self.taken]
        return ir.node("Concat", parts, {"axis": ROWS}).outputs[0]

    def joined(self, image: ir.Value, version: int) -> ir.Value:
        """The signal of an image."""
        along = constant([ROWS, COLUMNS])
        parts = [ir.node("Slice", [image, start, stop, along]).outputs[0] for start, stop in self.kept]
        return ops.squeezed(ir.node("Concat", parts, {"axis": COLUMNS}).outputs[0], [ROWS], version)


def _work(stage: Stage, alone_at: int | None = None) -> int:
    """Multiplications of the convolutions of a stage for each position.

    Args:
        stage: The stage.
        alone_at: Count those only that would run on one thread as images of height 1 of so many columns.
    """
    each = {node: math.prod(_sizes(node)) for node in stage.convolutions}
    if alone_at is None:
        return sum(each.values())
    return sum(work for node, work in each.items() if _is_alone(node, work * alone_at))


def _is_alone(convolution: ir.Node, multiplications: int) -> bool:
    outputs, _, kernel = _sizes(convolution)
    little = is_faster(convolution, ON_ONE_THREAD, multiplications=multiplications)
    pays = is_faster(convolution, IN_ROWS, kernel=kernel)
    return pays and not is_divided(convolution, outputs, is_little=little)


def _sizes(convolution: ir.Node) -> tuple[int, ...]:
    """How many channels come, how many each of them reads, and how many positions of these."""
    _, weight = inputs(convolution, 2)
    return static_dims(weight, 3)


def _likely(length: Dim) -> int:
    """The length, with usual sizes for symbols."""
    if isinstance(length, int):
        return length
    sizes = dict.fromkeys(symbolic.symbols(length), TYPICAL_PERIODS)
    size = symbolic.substitute(length, sizes)
    return size if isinstance(size, int) else 0


def _margin(halo: Halo, rows: int) -> int:
    """How much longer than its share a piece is: inner ones at both ends, the first and the last at one."""
    return halo.before + halo.behind if rows > 2 else max(halo.before, halo.behind)


def _speed(root: ir.Node, channels: int, halo: Halo, length: int, rows: int) -> float:
    """How many times as fast convolutions are with one thread, if their signals become so many rows."""
    gain = speed_of(root, IN_BLOCKS, channels=channels)
    return gain * length / (rows * (-(-length // rows) + _margin(halo, rows)))


def _rows(stage: Stage, length: int) -> int:
    """Into how many pieces the signals of a stage are cut.

    Raises:
        Refusal: If no number pays.
    """
    work, root = _work(stage), stage.nodes[0]
    need(work > 0, "the signals are empty", root)
    channels = max(_sizes(node)[0] for node in stage.convolutions)
    elements = sum(_channels(value) for value in (*stage.entries, *stage.exits))
    crossing = pays_from(root, CUT, "multiplications") * elements / work
    speeds = {rows: 1 / (1 / _speed(root, channels, stage.halo, length, rows) + crossing) for rows in COUNTS}
    enough = _pays(root, IN_ROWS, speeds[COUNTS[-1]])
    need(enough, "the halo of the stage is too large, or it is cut and joined for little", root)
    each = -(-work * length // len(stage.convolutions))
    small = is_faster(root, OF_LITTLE_WORK_IN_ROWS, multiplications=each)
    form = OF_LITTLE_WORK_IN_ROWS if small else IN_ROWS
    rows = next((rows for rows, speed in speeds.items() if _pays(root, form, speed)), COUNTS[-1])
    busy = 1 if small else BUSY_THREADS // -(-channels // CHANNELS_OF_A_THREAD)
    need(rows >= busy, "it would be divided among too few threads", root)
    return rows


def _pays(root: ir.Node, form: Form, speed: float) -> bool:
    """Whether a stage that is estimated to be so many times as fast in rows is worth it."""
    return is_faster(root, form, saving=int(100 * speed))


def _channels(signal: ir.Value) -> int:
    size = dims(signal, 3)[1]
    return size if isinstance(size, int) else BLOCK


def _of_images(old: ir.Node, images: dict[ir.Value, ir.Value]) -> ir.Node:
    """A node of the stage, on images."""
    if is_convolution(old):
        return convolution_of_images(old, images[operands(old)[0]])
    values = [_beside_images(value) if is_constant(value) else images[value] for value in inputs(old, len(old.inputs))]
    return ops.copied(old, values)


def _beside_images(value: ir.Value) -> ir.Value:
    """A constant that is the same at all positions."""
    content = array_of(value)
    return constant(content[..., None], dtype(value)) if content.ndim > 1 else value


def fixed_cuts(length: int, halo: Halo, rows: int) -> Cuts:
    """The pieces of signals of a fixed length."""
    share = -(-length // rows)
    width = min(length, share + _margin(halo, rows))
    begins = [min(place * share, length) for place in range(rows + 1)]
    starts = [max(0, min(begin - halo.before, length - width)) for begin in begins[:-1]]
    taken = [(constant([start]), constant([start + width])) for start in starts]
    kept = [
        (constant([row, begins[row] - start]), constant([row + 1, begins[row + 1] - start]))
        for row, start in enumerate(starts)
    ]
    return Cuts(tuple(taken), tuple(kept))


def computed_cuts(signal: ir.Value, halo: Halo, rows: int) -> Cuts:
    """The pieces of signals whose length is known when the model runs: the same arithmetic as nodes."""
    places = np.arange(rows)
    length = _node("Gather", _node("Shape", signal), constant([COLUMNS - 1]))
    share = _node("Div", _node("Add", length, constant([rows - 1])), constant([rows]))
    width = _node("Min", length, _node("Add", share, constant([_margin(halo, rows)])))
    begins = _node("Min", _node("Mul", share, constant(places)), length)
    ends = _node("Min", _node("Mul", share, constant(places + 1)), length)
    latest = _node("Sub", length, width)
    starts = _node("Max", _node("Min", _node("Sub", begins, constant([halo.before])), latest), constant([0]))
    stops = _node("Add", starts, width)
    first = _beside(places, _node("Sub", begins, starts))
    last = _beside(places + 1, _node("Sub", ends, starts))
    return Cuts(
        tuple(zip(_split(starts, rows, 1), _split(stops, rows, 1), strict=True)),
        tuple(zip(_split(first, rows, 2), _split(last, rows, 2), strict=True)),
    )


def _node(op: str, *values: ir.Value) -> ir.Value:
    return ir.node(op, values).outputs[0]


def _beside(numbers: np.ndarray, value: ir.Value) -> ir.Value:
    """Numbers and the elements of a vector in turns."""
    column = ops.unsqueezed(value, [1], VERSION)
    pairs = ir.node("Concat", [constant(numbers[:, None]), column], {"axis": 1}).outputs[0]
    return _node("Reshape", pairs, constant([-1]))


def _split(value: ir.Value, parts: int, each: int) -> Sequence[ir.Value]:
    """A vector in parts of so many elements."""
    sizes = constant([each] * parts)
    return ir.node("Split", [value, sizes], {"axis": 0}, num_outputs=parts).outputs
