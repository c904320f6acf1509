"""The outputs of copies of the original that differ from it by rounding only; each is run when it is asked for.

A copy of a quantized model in which every quantizer may round to the step beside.

What a quantizer rounds is moved by up to half a step, at random: about a quarter of its numbers goes to the step above
or below. A right result may round elsewhere, too (a fused kernel requantizes with a multiplier of its own, and the last
place decides between two steps), but at few places. So what these copies move by is a bound for all of them, whatever
ops the result computes with; and it is a property of the original alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.analysis.shapes import infer_model
from ortopt.cancellation import NEVER, CancellationToken
from ortopt.errors import UsageError
from ortopt.evaluation.raw_tensors import Place
from ortopt.serialization.load import load
from ortopt.verification import noise
from ortopt.verification.input_sets import InputSet, inputs_from, store_inputs
from ortopt.verification.node_writer import NodeWriter
from ortopt.verification.process import WorkerError
from ortopt.verification.quantizers import DYNAMIC, OUTPUT_SCALES, is_blockwise, quantizers
from ortopt.verification.runner import ModelRunner, Source
from ortopt.verification.worker import restore

_BEFORE_ROUNDING: Final = 0.5
_AFTER_ROUNDING: Final = 2 / 3
"""Steps by which what has been rounded is moved: so that rounding again lets as many go to the step beside."""

_LEVELS: Final = 127
"""Steps of a block of MatMulNBits on either side of zero."""

_AXES_AS_INPUT: Final = 18


def stepped(model: ir.Model, seed: int, token: CancellationToken = NEVER) -> ir.Model:
    """A copy whose quantizers round to the step beside, at random.

    Args:
        model: The model.
        seed: Of what is random.
        token: Cancellation token.
    """
    copy = load(model, token)
    infer_model(copy, token)
    for number, node in enumerate(list(quantizers(copy, token))):
        write = _Stepping(node, copy.opset_imports.get("", 1), seed * 100_003 + number + 1)
        write.step()
    return copy


class _Stepping(NodeWriter):
    """Moves what one quantizer rounds.

    Args:
        node: The quantizer.
        opset: The opset of ai.onnx.
        seed: Of what is random.
    """

    def __init__(self, node: ir.Node, opset: int, seed: int) -> None:
        super().__init__(node, opset)
        self._seed = seed

    def step(self) -> None:
        """Move what the node takes, or else what it gives."""
        key, node = (self.node.domain, self.node.op_type), self.node
        data = node.inputs[0]
        if key in OUTPUT_SCALES:
            self._step_output(OUTPUT_SCALES[key])
        elif data is None or data.const_value is not None or (data.dtype is not None and data.dtype.is_integer()):
            return  # what is constant may be folded, and then nothing rounds
        elif key == ("", "DynamicQuantizeLinear"):
            self._step_dynamic(data)
        elif is_blockwise(node):
            self._step_blocks(data)
        elif key in DYNAMIC:
            _, step, _ = self.several(3, "DynamicQuantizeLinear", data)
            node.replace_input_with(0, self._moved(data, step))
        elif (scale := self._scale(data)) is not None:
            node.replace_input_with(0, self._moved(data, scale))

    def _moved(self, data: ir.Value, step: ir.Value, steps: float = _BEFORE_ROUNDING) -> ir.Value:
        drawn = self(
            "RandomUniformLike", data, low=-steps, high=steps, seed=float(self._seed), dtype=ir.DataType.FLOAT.value
        )
        return self("Add", data, self("Mul", self.cast_like(drawn, step), step))

    def _scale(self, data: ir.Value) -> ir.Value | None:
        """The scale of a QuantizeLinear, as it broadcasts to what is rounded; None where that is not known."""
        node = self.node
        scale: ir.Value | None = node.inputs[1]
        shape = None if scale is None else scale.shape
        if scale is None or shape is None or "block_size" in node.attributes:
            return None
        if len(shape) == 0 or (len(shape) == 1 and shape[0] == 1):
            return scale
        if data.shape is None:
            return None
        after = (len(data.shape) - 1 - node.attributes.get_int("axis", 1)) % len(data.shape)
        return self("Reshape", scale, self.constant([-1, *[1] * after], np.int64))

    def _step_dynamic(self, data: ir.Value) -> None:
        """The scale and the zero point stay; what is rounded by them moves."""
        node = self.node
        self.node = self._after(node)
        scale, zero_point = node.outputs[1], node.outputs[2]
        old = node.outputs[0]
        new = self("QuantizeLinear", self._moved(data, scale), scale, zero_point)
        old.replace_all_uses_with(new, replace_graph_outputs=False)

    def _step_output(self, number: int) -> None:
        node = self.node
        scale: ir.Value | None = node.inputs[number]
        zero_point: ir.Value | None = node.inputs[number + 1] if len(node.inputs) > number + 1 else None
        assert scale is not None
        self.node = self._after(node)
        old = node.outputs[0]
        floats = self("DequantizeLinear", old, scale, zero_point)
        new = self("QuantizeLinear", self._moved(floats, scale, _AFTER_ROUNDING), scale, zero_point)
        keeps = floats.producer()
        assert keeps is not None
        old.replace_all_uses_with(new, replace_graph_outputs=False)
        keeps.replace_input_with(0, old)

    def _after(self, node: ir.Node) -> ir.Node:
        """The node before which stands what comes behind another one."""
        assert node.graph is not None
        end = ir.node("Identity", [node.outputs[0]])
        node.graph.insert_after(node, end)
        return end

    def _step_blocks(self, data: ir.Value) -> None:
        size, columns = self.node.attributes.get_int("block_size", 32), self.node.attributes.get_int("K", 1)
        block = math.gcd(size, columns)
        blocks = self("Reshape", data, self.constant([-1, columns // block, block], np.int64))
        sizes = self("Abs", blocks)
        if self.opset >= _AXES_AS_INPUT:
            largest = self("ReduceMax", sizes, self.constant([-1], np.int64), keepdims=1)
        else:
            largest = self("ReduceMax", sizes, axes=[-1], keepdims=1)
        levels = self.cast_like(self.constant(1 / _LEVELS, np.float32), data)
        moved = self._moved(blocks, self("Mul", largest, levels))
        self.node.replace_input_with(0, self("Reshape", moved, self("Shape", data)))


_PERTURBATIONS: Final = 6
"""Copies that may show why an integer came out differently."""


class PerturbedOutputs(Struct, frozen=True):
    """The outputs of a copy of the original on one input set.

    Attributes:
        place: Where they are kept.
        rows: How to find them there.
    """

    place: Place
    rows: list[Any]


@dataclass(eq=False)
class PerturbedCopies:
    """Copies of an original, of several kinds (see `ortopt.verification.noise`).

    ``jitter0`` and ``jitter1`` are moved by a unit in the last place, ``perturb0`` and so on by up to a few units,
    ``wide`` is widened, ``optimized`` is optimized by ONNX Runtime. Of ``stepped0`` and ``stepped1`` each quantizer
    rounds otherwise (`stepped`). Where the original itself is optimized by ONNX Runtime, so are all
    of these, and ``optimized`` is not.

    Attributes:
        runner: Runs them.
        original: A path or a model.
        sets: All input sets, by number.
        is_quantized: Whether the original has quantizers.
        prefix: Of the names of files: for a second original of the same runner.
        optimize: Whether the original's outputs are those of a session that ONNX Runtime optimizes.
    """

    runner: ModelRunner
    original: Source
    sets: Mapping[int, InputSet]
    _: KW_ONLY
    is_quantized: bool = False
    prefix: str = ""
    optimize: bool = False

    def __post_init__(self) -> None:
        self._stepped: tuple[str, ...] = ("stepped0", "stepped1") if self.is_quantized else ()
        self._outputs: dict[tuple[str, int], PerturbedOutputs | None] = {}

    def rounded(self, number: int, i: int, expected: Any, type_: str) -> Iterable[tuple[str, Any]]:
        """By their kinds, what copies give that differ in rounding: each is run when it is asked for.

        Args:
            number: The input set.
            i: The output.
            expected: What the original gives, whose dtype they get.
            type_: The output's type in ONNX's spelling.
        """
        for kind in (*self._stepped, "jitter0", "jitter1", "wide", "optimized"):
            outputs = self._of(kind, number)
            if outputs is not None:
                yield kind, _in_dtype_of(restore(outputs.place, outputs.rows[i]), expected, type_)

    def perturbed(self, number: int, i: int) -> list[Any]:
        """What copies give that are moved by several units in the last place, or by steps, or widened.

        Args:
            number: The input set.
            i: The output.
        """
        return self._outputs_of((*self._stepped, *(f"perturb{n}" for n in range(_PERTURBATIONS)), "wide"), number, i)

    def stepped(self, number: int, i: int) -> list[Any]:
        """What copies give whose quantizers round otherwise.

        Args:
            number: The input set.
            i: The output.
        """
        return self._outputs_of(self._stepped, number, i)

    def _outputs_of(self, kinds: Iterable[str], number: int, i: int) -> list[Any]:
        every = [self._of(kind, number) for kind in kinds]
        return [restore(outputs.place, outputs.rows[i]) for outputs in every if outputs is not None]

    def _of(self, kind: str, number: int) -> PerturbedOutputs | None:
        """The outputs of a copy; None where there is no such copy, or it does not run."""
        if (kind, number) not in self._outputs:
            try:
                self._outputs[kind, number] = self._run(kind, number)
            except (WorkerError, UsageError, TypeError, ValueError):
                self._outputs[kind, number] = None
        return self._outputs[kind, number]

    def _run(self, kind: str, number: int) -> PerturbedOutputs | None:
        runner, token, input_set = self.runner, self.runner.token, self.sets[number]
        label = f"{self.prefix}{kind}"
        source, target = runner.place(f"{label}-in{number}"), runner.place(f"{label}-out{number}")
        if kind == "optimized":
            with runner.worker(self.original, label, optimize=not self.optimize) as worker:
                return PerturbedOutputs(target, worker.run(input_set.source, target))
        model = self.original if isinstance(self.original, ir.Model) else load(self.original, token)
        if noise.constant_bytes(model, token) > noise.LARGEST_COPY:
            return None
        inputs = inputs_from(input_set.source)
        copy: ir.Model | None
        if kind == "wide":
            copy = noise.widened(model, token)
            if copy is None:
                return None
            moved = noise.widened_inputs(inputs, copy)
        elif kind in self._stepped:
            copy, moved = stepped(model, int(kind[-1]), token), dict(inputs)
        else:
            units = noise.PERTURBED_BY if kind.startswith("perturb") else 1
            seed = int(kind[-1])
            copy = noise.jittered(model, seed, units, token)
            moved = noise.jittered_inputs(inputs, seed, units, token, small=input_set.extreme)
        store_inputs(moved, source)
        with runner.worker(copy, label, optimize=self.optimize) as worker:
            return PerturbedOutputs(target, worker.run(source, target))


def _in_dtype_of(value: Any, expected: Any, type_: str) -> Any:
    """What a widened model gave, rounded to the dtype of the original's output."""
    if isinstance(value, list):
        return [_in_dtype_of(*pair, type_) for pair in zip(value, expected, strict=False)]
    if not isinstance(value, np.ndarray) or not isinstance(expected, np.ndarray) or value.dtype == expected.dtype:
        return value
    with np.errstate(over="ignore"):
        if "bfloat16" in type_ and expected.dtype == np.uint16:
            return value.astype(ir.DataType.BFLOAT16.numpy()).view(np.uint16)
        return value.astype(expected.dtype) if value.dtype.kind == expected.dtype.kind == "f" else value
