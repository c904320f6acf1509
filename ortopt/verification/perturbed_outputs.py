"""The outputs of copies of the original that differ from it by rounding only; each is run when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt.errors import UsageError
from ortopt.evaluation.raw_tensors import Place
from ortopt.serialization.load import load
from ortopt.verification import noise
from ortopt.verification.input_sets import InputSet, inputs_from, store_inputs
from ortopt.verification.process import WorkerError
from ortopt.verification.runner import ModelRunner, Source
from ortopt.verification.stepped import stepped
from ortopt.verification.worker import restore

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


class PerturbedCopies:
    """Copies of an original, of several kinds (see `ortopt.verification.noise`).

    ``jitter0`` and ``jitter1`` are moved by a unit in the last place, ``perturb0`` and so on by up to a few units,
    ``wide`` is widened, ``optimized`` is optimized by ONNX Runtime. Of ``stepped0`` and ``stepped1`` each quantizer
    rounds otherwise (`ortopt.verification.stepped`). Where the original itself is optimized by ONNX Runtime, so are all
    of these, and ``optimized`` is not.

    Args:
        runner: Runs them.
        original: A path or a model.
        sets: All input sets, by number.
        is_quantized: Whether the original has quantizers.
        prefix: Of the names of files: for a second original of the same runner.
        optimize: Whether the original's outputs are those of a session that ONNX Runtime optimizes.
    """

    def __init__(
        self,
        runner: ModelRunner,
        original: Source,
        sets: Mapping[int, InputSet],
        *,
        is_quantized: bool = False,
        prefix: str = "",
        optimize: bool = False,
    ) -> None:
        self._optimize = optimize
        self._stepped: tuple[str, ...] = ("stepped0", "stepped1") if is_quantized else ()
        self._prefix = prefix
        self._runner = runner
        self._original = original
        self._sets = sets
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
        runner, token, input_set = self._runner, self._runner.token, self._sets[number]
        label = f"{self._prefix}{kind}"
        source, target = runner.place(f"{label}-in{number}"), runner.place(f"{label}-out{number}")
        if kind == "optimized":
            with runner.worker(self._original, label, optimize=not self._optimize) as worker:
                return PerturbedOutputs(target, worker.run(input_set.source, target))
        model = self._original if isinstance(self._original, ir.Model) else load(self._original, token)
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
        with runner.worker(copy, label, optimize=self._optimize) as worker:
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
