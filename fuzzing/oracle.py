"""Is the result what the original is? Every level, every input set, to the bit where the passes promise it."""

from __future__ import annotations

import contextlib
import random
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from fuzzing.contradictions import KINDS, SIGNS, is_meaningless, tamed
from fuzzing.disturbance import disturbed, disturbed_feeds
from fuzzing.generator import Case
from fuzzing.protos import nodes_of, watched
from fuzzing.writer import NEWEST_OPSET, Array
from ortopt import optimize, registry, semantics
from ortopt.errors import OrtoptError
from ortopt.instrumentation.explanation import Explanation
from ortopt.optimization.result import PassTotal
from ortopt.options import Numerics
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.verification.comparison import Comparison, OutputRow
from ortopt.verification.randomness import random_outputs
from ortopt.verification.result_comparison import accept_spreading
from ortopt.verification.tolerances import tolerances

_COARSE: Final = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_SLOW: Final = 20.0
_TRIALS: Final = 6
_QUANTIZED_BYTES: Final = 2  # wider integers are no quantized numbers
_NOISE: Final = 16.0  # how much more than a disturbed original a result may err
_BY_BLOCKS: Final = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"})


@dataclass(frozen=True)
class Way:
    """One way to optimize.

    Attributes:
        level: 1 to 4.
        target: ``onnx`` or ``ort``.
        more: Other options of `ortopt.optimize`.
    """

    level: int
    target: Literal["onnx", "ort"] = "ort"
    more: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        extra = "".join(f" {name}={value}" for name, value in self.more.items())
        return f"-O{self.level} --target {self.target}{extra}"


@dataclass(frozen=True)
class Failure:
    """What went wrong.

    Attributes:
        kind: In one word.
        way: How it was optimized.
        detail: In words.
        culprit: The transformer whose rewrite makes the difference, if it was looked for.
        rewrite: The number of that rewrite.
    """

    kind: str
    way: Way
    detail: str
    culprit: str = ""
    rewrite: int = 0

    def __str__(self) -> str:
        return f"{self.kind} at {self.way}: {self.culprit or '?'} (rewrite {self.rewrite}): {self.detail}"


class Rejected(Exception):  # noqa: N818 - no error: another is drawn
    """ONNX Runtime does not run the original."""


def levels() -> tuple[int, ...]:
    """The levels at which anything is registered, 2 included."""
    known = {level.value for kind in registry.installed() for level in kind.levels}
    return tuple(sorted(known | {1, 2, 3}))


def ways(seed: int, opset: int) -> list[Way]:
    """The ways that a seed is optimized: each level as users ask for it, and one with rarer options.

    Args:
        seed: The seed.
        opset: That of the model, which some ways keep.
    """
    found = [Way(1, "onnx"), *(Way(level) for level in levels() if level > 1)]
    draw = random.Random(seed)
    rare: list[Way] = [
        Way(3, "onnx"),
        Way(1, "ort"),
        Way(3, "ort", {"keep_functions": True}),
        Way(3, "ort", {"fusions": "all"}),
        Way(2, "ort", {"max_growth": 0}),
        Way(3, "ort", {"fusions": "all"}),
        Way(3, "ort", {"fusions": "all", "opset": opset}),
        Way(3, "onnx", {"opset": opset}),
    ]
    return [*found, draw.choice(rare)]


def session(
    model: bytes,
    level: onnxruntime.GraphOptimizationLevel = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
) -> onnxruntime.InferenceSession:
    """A session of one thread, without optimization if nothing else is said."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def run(runs: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> list[Any]:
    """The outputs."""
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    return list(runs.run(None, dict(feeds), options))


class Oracle:
    """What is right for one case.

    Args:
        case: The model and its input sets.
        report: Told what is about to be done, so that a crash can be placed.

    Raises:
        Rejected: ONNX Runtime does not take or run the original.
    """

    def __init__(self, case: Case, report: Callable[[str], None] = lambda _: None) -> None:
        self.case = case
        self.bytes = case.model.SerializeToString()
        self._report = report
        report("original")
        try:
            runs = session(self.bytes)
        except Exception as error:
            raise Rejected(_line(error)) from error
        self.outputs = [(one.name, one.type) for one in runs.get_outputs()]
        self.sets: list[tuple[dict[str, Array], list[Any], bool]] = []
        reduces = any(node.op_type.startswith(("Reduce", "Arg")) for node in nodes_of(case.model))
        for number, feeds in enumerate(case.feeds):
            empty = any(isinstance(array, np.ndarray) and array.size == 0 for array in feeds.values())
            if reduces and empty:
                continue  # ONNX Runtime keeps the shape of what is empty, whichever axes are reduced
            if empty and copies_for_a_computed_0(case.model, feeds):
                continue  # inference takes a computed size for the size that comes out
            try:
                expected = run(runs, feeds)
            except Exception as error:
                if number == 0:
                    raise Rejected(_line(error)) from error
                continue
            if empty and any(map(_other_bits, expected, run(session(self.bytes), feeds))):
                continue  # ONNX Runtime gives memory that nobody has written where nothing is summed up
            self.sets.append((feeds, expected, number >= len(case.feeds) - case.special))
        if not self.sets:
            raise Rejected("no input set is left")
        if is_meaningless(case.model):
            raise Rejected("ONNX Runtime gathers strings wrongly")
        loaded = load(self.bytes)
        self.random = any(semantics.is_random(node, loaded.functions) for node in loaded.graph)
        self.comparison = Comparison(tolerances(loaded), random_outputs(loaded))
        self.coarse = any(dtype in _COARSE for dtype in _dtypes(case.model))
        # ONNX Runtime's own kernels round otherwise if an operand is a constant (packed beforehand).
        self.by_blocks = any(node.op_type in _BY_BLOCKS for node in nodes_of(case.model))
        self._spreading = False
        self._quantized = False
        self._seen: dict[bytes, bool] = {}
        self.noisy = 0
        self.rewrites: dict[str, int] = {}

    def check(self, way: Way, *, again: bool = False) -> Failure | None:
        """Optimize in one way and compare; None if all is well.

        Args:
            way: How.
            again: Whether the result is optimized once more, which must change nothing.
        """
        self._report(f"optimize {way}")
        start = time.monotonic()
        try:
            made, passes = optimized(self.bytes, way)
        except _Unfinished as error:
            return Failure("unfinished", way, _line(error))
        except OrtoptError as error:
            return Failure("raises", way, _line(error))
        except Exception as error:  # what must never come out is what is looked for
            return Failure("traceback", way, f"{type(error).__name__}: {_line(error)}")
        took = time.monotonic() - start
        if took > _SLOW:
            return Failure("slow", way, f"it took {took:.0f} s")
        for one in passes:
            self.rewrites[one.transformer] = self.rewrites.get(one.transformer, 0) + 1
        exact = not self.coarse and all(one.numerics is Numerics.EXACT for one in passes)
        self._spreading = any(one.numerics is Numerics.FINITE for one in passes)
        self._quantized = any(one.numerics is Numerics.QUANTIZED for one in passes)
        if self._seen.get(made, False) or (made in self._seen and not exact):
            return None
        self._seen[made] = exact
        failure = self._interface(made, way) or self._compared(made, way, exact) or self._checker(made, way)
        if failure is None and again:
            self._report(f"again {way}")
            failure = _again(made, way)
        return failure

    def _interface(self, made: bytes, way: Way) -> Failure | None:
        before, after = _interface(self.case.model), _interface(onnx.load_from_string(made))
        for kind, one, other in zip(("inputs", "outputs"), before, after, strict=True):
            # A type that the original leaves out is filled in: readers want it.
            if len(one) != len(other) or any(
                a != (b if a.HasField("type") else _bare(b)) for a, b in zip(one, other, strict=True)
            ):
                return Failure("interface", way, f"the {kind} are not what they were")
        return None

    def _checker(self, made: bytes, way: Way) -> Failure | None:
        if way.target != "onnx" and way.level != 1:
            return None
        try:
            onnx.checker.check_model(made)
        except Exception as error:
            with contextlib.suppress(Exception):
                onnx.checker.check_model(self.bytes)
                return Failure("checker", way, _line(error))
        return None

    def _compared(self, made: bytes, way: Way, exact: bool) -> Failure | None:
        self._report(f"result of {way}")
        try:
            runs = session(made)
        except Exception as error:
            if not self._loads_when_folded():
                return None
            return Failure("unloadable", way, _line(error))
        if [(one.name, one.type) for one in runs.get_outputs()] != self.outputs:
            return Failure("interface", way, "ONNX Runtime sees other outputs")
        for number, (feeds, expected, special) in enumerate(self.sets):
            if special and not exact:
                continue  # what is rounded in another order meets infinities elsewhere
            try:
                got = run(runs, feeds)
            except Exception as error:
                return Failure("stops", way, f"input set {number}: {_line(error)}")
            detail = self.difference(feeds, expected, got, exact)
            if not detail or self._is_unsteady(feeds, expected) or joins_what_does_not_fit(self.case.model, feeds):
                continue
            if not self._is_contradiction(made, feeds, exact):
                return Failure("differs", way, f"input set {number}{' (exact)' if exact else ''}: {detail}")
        return None

    def _loads_when_folded(self) -> bool:
        """Whether ONNX Runtime loads the original with constants folded: they may show that a branch never runs."""
        try:
            session(self.bytes, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
        except Exception:
            return False
        return True

    def difference(self, feeds: Mapping[str, Array], expected: list[Any], got: list[Any], exact: bool) -> str:
        """How outputs differ from those of the original, in words; empty where they do not."""
        if exact and not self.random:
            found = [_other_bits(*both) for both in zip(expected, got, strict=True)]
            if not any(found):
                return ""
            if not self.by_blocks:
                return next(
                    f"output {name}: {detail}" for (name, _), detail in zip(self.outputs, found, strict=True) if detail
                )
        if self._spreading:
            triples = zip(expected, got, self.outputs, strict=True)
            expected = [accept_spreading(one, other, kind, special=False)[0] for one, other, (_, kind) in triples]
        if self._quantized:
            expected = [_with_steps(one, other) for one, other in zip(expected, got, strict=True)]
        rows = self._rows(expected, got)
        wrong = [i for i, row in enumerate(rows) if not row.agrees]
        if wrong and not exact:  # sums in another order: infinite in one, NaN in the other
            both = [_without_lost(*both) for both in zip(expected, got, strict=True)]
            rows = self._rows([one for one, _ in both], [other for _, other in both])
            wrong = [i for i, row in enumerate(rows) if not row.agrees]
        if not wrong:
            return ""
        real = [i for i in wrong if not self._is_noise(i, feeds, expected, rows[i].worst)]
        if not real:
            self.noisy += 1
            return ""
        row = rows[real[0]]
        return f"output {row.name}: {row.detail}"

    def _rows(self, expected: list[Any], got: list[Any]) -> list[OutputRow]:
        return [
            self.comparison.of(name, type_, *both)
            for (name, type_), *both in zip(self.outputs, expected, got, strict=True)
        ]

    def _is_unsteady(self, feeds: Mapping[str, Array], expected: list[Any]) -> bool:
        """Whether the original gives other bits each time: memory that nobody has written, where sizes do not fit."""
        again = (run(session(self.bytes), feeds) for _ in range(_TRIALS))
        return not self.random and any(any(map(_other_bits, expected, got)) for got in again)

    def _is_contradiction(self, made: bytes, feeds: Mapping[str, Array], exact: bool) -> bool:
        """Whether original and result agree once neither meets what ONNX Runtime's kernels contradict themselves at.

        Where bits may change, the sign of a zero may, and with it which infinity a division gives; and a quotient may
        be finite whose reciprocal is not.
        """
        result = onnx.load_from_string(made)
        kinds = KINDS if exact else KINDS | SIGNS
        return any(self._agree_when_tamed(result, what, feeds, exact) for what in (kinds, *({one} for one in kinds)))

    def _agree_when_tamed(
        self, result: ModelProto, what: Collection[str], feeds: Mapping[str, Array], exact: bool
    ) -> bool:
        models = (self.case.model, result)
        twins = [tamed(model, what) for model in models]
        if all(twin is None for twin in twins):
            return False
        try:
            expected, got = (
                run(session((twin or model).SerializeToString()), feeds)
                for twin, model in zip(twins, models, strict=True)
            )
        except Exception:
            return False
        if exact and not self.random and not self.by_blocks:
            return not any(_other_bits(*both) for both in zip(expected, got, strict=True))
        return all(row.agrees for row in self._rows(expected, got))

    def _is_noise(self, at: int, feeds: Mapping[str, Array], expected: list[Any], error: float) -> bool:
        """Whether the original itself errs as much if each of its floats is disturbed by about a rounding."""
        name, type_ = self.outputs[at]
        worst = 0.0
        for trial in range(_TRIALS):
            try:
                got = run(session(disturbed(self.case.model, trial).SerializeToString()), disturbed_feeds(feeds, trial))
            except Exception:
                return False
            row = self.comparison.of(name, type_, expected[at], got[at])
            worst = max(worst, row.worst)
        return error <= _NOISE * worst

    def blame(self, failure: Failure) -> Failure:
        """Find the first rewrite after which it is wrong, by bisection over their number."""
        way = failure.way
        try:
            explanation = Explanation()
            with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
                optimize(
                    self.bytes, level=way.level, target=way.target, verify=False, observers=[explanation], **way.more
                )
            low, high = 0, max((one.number for one in explanation.rewrites), default=0)
            if failure.kind in ("unfinished", "slow", "again") or not high:
                return failure
            while low + 1 < high:
                middle = (low + high) // 2
                self._seen.clear()
                found = self.check(replace(way, more={**way.more, "limit": middle}))
                low, high = (low, middle) if found is not None and found.kind == failure.kind else (middle, high)
            names = {one.number: one.transformer for one in explanation.rewrites}
            return replace(failure, culprit=names.get(high, ""), rewrite=high)
        except Exception:
            return failure


class _Unfinished(Exception):  # noqa: N818 - a finding
    """The fixed point was not reached."""


def optimized(model: bytes, way: Way) -> tuple[bytes, list[PassTotal]]:
    """The result's bytes, and what the transformers did that made it."""
    with warnings.catch_warnings(action="error"):
        try:
            result = optimize(model, level=way.level, target=way.target, verify=False, **way.more)
        except RuntimeWarning as warning:
            raise _Unfinished(str(warning)) from warning
    if result.summary.bound_reached:
        raise _Unfinished(f"levels {result.summary.bound_reached}")
    return to_bytes(result.model), list(result.summary.passes)


def _read(model: ModelProto, feeds: Mapping[str, Array], op: str) -> tuple[list[NodeProto], dict[str, Any]]:
    """The nodes of an op in the main graph, and all values of that; no nodes where it cannot be watched."""
    twin = watched(onnx.inliner.inline_local_functions(model))
    nodes = [node for node in twin.graph.node if node.op_type == op]
    if not nodes:
        return [], {}
    try:
        values = zip(
            (one.name for one in twin.graph.output), run(session(twin.SerializeToString()), feeds), strict=True
        )
        return nodes, {**dict(values), **feeds}
    except Exception:
        return [], {}


def joins_what_does_not_fit(model: ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Whether a Concat of the main graph skips what is empty, and so gives memory that nobody has written."""
    nodes, values = _read(model, feeds, "Concat")
    for node in nodes:
        arrays = [values[name] for name in node.input if isinstance(values.get(name), np.ndarray)]
        axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
        if len({np.delete(array.shape, axis).tobytes() for array in arrays}) > 1:
            return True
    return False


def copies_for_a_computed_0(model: ModelProto, feeds: Mapping[str, Array]) -> bool:
    """Whether a Reshape of the main graph is told to make 0 elements of an axis, and copies the input's number."""
    reshapes, values = _read(model, feeds, "Reshape")
    reshapes = [node for node in reshapes if len(node.input) == 2]
    for node in reshapes:
        source, target = (values.get(name) for name in node.input)
        if source is None or target is None or any(attribute.i for attribute in node.attribute):
            continue
        if any(size == 0 and source.shape[i] != 0 for i, size in enumerate(target)):
            return True
    return False


def _with_steps(expected: Any, got: Any) -> Any:
    """An output of quantized numbers with those of the other that are one step from them at most."""
    arrays = isinstance(expected, np.ndarray) and isinstance(got, np.ndarray)
    if not arrays or expected.shape != got.shape or expected.dtype != got.dtype:
        return expected
    if expected.dtype.kind not in "iu" or expected.dtype.itemsize > _QUANTIZED_BYTES:
        return expected
    near = np.abs(expected.astype(np.int64) - got.astype(np.int64)) <= 1
    return np.where(near, got, expected)


def _without_lost(expected: Any, got: Any) -> tuple[Any, Any]:
    """Two outputs with 0 where one is infinite, or NaN, and the other NaN; zeros have no sign.

    A sum in another order, or of more zeros, has a zero of the other sign.
    """
    arrays = isinstance(expected, np.ndarray) and isinstance(got, np.ndarray)
    if not arrays or expected.shape != got.shape or expected.dtype.kind != "f" or got.dtype.kind != "f":
        return expected, got
    lost = (np.isnan(expected) & ~np.isfinite(got)) | (~np.isfinite(expected) & np.isnan(got))
    zero = expected.dtype.type(0)  # -0.0 + 0.0 is 0.0
    return np.where(lost, zero, expected) + zero, np.where(lost, zero, got) + zero


def _interface(model: ModelProto) -> tuple[list[ValueInfoProto], list[ValueInfoProto]]:
    """Inputs and outputs; before IR version 4 every initializer is listed as an input too, and is none.

    What `value_info` says of an output counts for it, as it does for all who load the model.
    """
    graph = model.graph
    told = {one.name: one for one in graph.value_info}
    outputs = [_completed(one, told.get(one.name)) for one in graph.output]
    constants = {one.name for one in graph.initializer} if model.ir_version < 4 else set()
    values = [value for value in graph.input if value.name not in constants], outputs
    for value in (*values[0], *values[1]):
        for dim in value.type.tensor_type.shape.dim if value.type.HasField("tensor_type") else ():
            if dim.HasField("dim_value") and dim.dim_value < 0:  # how some spell what is not known
                dim.ClearField("dim_value")
    return values


def _completed(output: ValueInfoProto, told: ValueInfoProto | None) -> ValueInfoProto:
    """An output with the shape that is said of it elsewhere, if it has none."""
    if told is None or not output.type.HasField("tensor_type") or not told.type.HasField("tensor_type"):
        return output
    if output.type.tensor_type.HasField("shape") or not told.type.tensor_type.HasField("shape"):
        return output
    completed = ValueInfoProto()
    completed.CopyFrom(output)
    completed.type.tensor_type.shape.CopyFrom(told.type.tensor_type.shape)
    return completed


def _bare(value: ValueInfoProto) -> ValueInfoProto:
    """A value without its type."""
    bare = ValueInfoProto()
    bare.CopyFrom(value)
    bare.ClearField("type")
    return bare


def _again(made: bytes, way: Way) -> Failure | None:
    """A second run on a result must leave every byte."""
    if "limit" in way.more:
        return None
    try:
        twice, passes = optimized(made, way)
    except Exception as error:
        return Failure("again", way, f"{type(error).__name__}: {_line(error)}")
    if passes:
        names = [one.transformer for one in passes]
        return Failure("again", way, f"the result is changed once more by {', '.join(names)}", names[0])
    return None if twice == made else Failure("again", way, "other bytes")


def _other_bits(expected: Any, got: Any) -> str:
    """How two outputs differ in their bits; NaN is NaN, whatever its sign and payload."""
    if isinstance(expected, list) and isinstance(got, list):  # a sequence
        if len(expected) != len(got):
            return f"{len(got)} elements instead of {len(expected)}"
        return next(filter(None, map(_other_bits, expected, got)), "")
    one, other = np.asarray(expected), np.asarray(got)
    if one.dtype != other.dtype or one.shape != other.shape:
        return f"{other.dtype}{list(other.shape)} instead of {one.dtype}{list(one.shape)}"
    different = np.asarray(one != other)
    if one.dtype.kind == "f":
        different &= ~(np.isnan(one) & np.isnan(other))
        different |= np.signbit(one) != np.signbit(other)
        different &= ~(np.isnan(one) & np.isnan(other))
    if not different.any():
        return ""
    where = tuple(int(index[0]) for index in np.nonzero(np.atleast_1d(different)))
    pair = np.atleast_1d(other)[where], np.atleast_1d(one)[where]
    return f"{pair[0]!r} instead of {pair[1]!r} at {list(where)}, {int(different.sum())} of {one.size}"


def _dtypes(model: ModelProto) -> Iterator[int]:
    """Element types of inputs, constants and casts."""
    yield from (one.type.tensor_type.elem_type for one in model.graph.input)
    yield from (one.data_type for one in model.graph.initializer)
    for node in nodes_of(model):
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype"):
                yield attribute.i
            if attribute.HasField("t"):
                yield attribute.t.data_type


def _line(error: object) -> str:
    return " ".join(str(error).split())[:400]


def failures(
    case: Case, seed: int, report: Callable[[str], None] = lambda _: None, chosen: Sequence[Way] = ()
) -> tuple[Oracle, list[Failure]]:
    """What is wrong with a case: the first failure, if there is one.

    Args:
        case: The model and its inputs.
        seed: What it was drawn from.
        report: Told what is about to be done.
        chosen: How it is optimized; by the seed if empty.

    Raises:
        Rejected: ONNX Runtime does not run the original.
    """
    oracle = Oracle(case, report)
    found: list[Failure] = []
    opset = next((one.version for one in case.model.opset_import if not one.domain), NEWEST_OPSET)
    for way in chosen or ways(seed, opset):
        failure = oracle.check(way, again=seed % 3 == 0)
        if failure is not None:
            found.append(oracle.blame(failure))
            break
    return oracle, found


__all__: Sequence[str] = ["Failure", "Oracle", "Rejected", "Way", "failures"]
