"""``python -m fuzzing.shapes --seed N --count M``: shape rules and numpy kernels against ONNX Runtime's kernels.

A seed stands for one call: an op, an opset in which its form begins or ends, attributes at their boundaries, operands.
ONNX Runtime runs it without optimization. Where it does,

- what inference states of every value (element type, dimensions, elements), for fixed dimensions and for symbols in
  which the drawn sizes are then put, is what it computed;
- what a numpy kernel computes is that bit for bit, and it may leave the call alone instead.

Where ONNX Runtime refuses the call, a rule may state anything but must come to an end, and no numpy kernel computes it:
folding would make a model run that does not. (Only where it has no kernel for an opset or a dtype that the op allows
may numpy compute what the specification says: the call is in order.) Calls that end the process (an integer division by
0 or of the smallest integer by -1, a stride of 0) are not drawn; others that do are counted as crashes.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any, Final, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from fuzzing.calls import DRAWINGS, Drawn, drawn
from fuzzing.calls.draw import Array
from fuzzing.calls.forms import Form, fixed, onnx_dtype, symbolic
from fuzzing.campaign import Tally, campaign
from ortopt.analysis import shapes
from ortopt.analysis.shape_rules import RULES
from ortopt.analysis.shape_rules.registry import Call, Rule, Steps, Unknown
from ortopt.evaluation.call import Call as Folding
from ortopt.evaluation.call import HazardError, Operand, UnsupportedHereError
from ortopt.evaluation.evaluate import on_demand
from ortopt.evaluation.numpy_kernels import KERNELS, compute, tensor_of
from ortopt.evaluation.raw_tensors import Raw, raw_of
from ortopt.graph.facts import all_contents, dims_of
from ortopt.graph.symbolic import Dim, substitute
from ortopt.system.child_processes import take_streams

CALLS: Final = tuple(sorted(DRAWINGS))
"""Domain and type of every op that is drawn; a seed takes the next one."""

NUMPY: Final = "numpy "
"""Before the name of an op that numpy computed."""

_LIMIT: Final = 1 << 24
_LACKING: Final = re.compile("NOT_IMPLEMENTED|InsertedPrecisionFreeCast")
_PROVIDERS: Final = ["CPUExecutionProvider"]


class RefusedError(Exception):
    """ONNX Runtime does not run the call."""


def call_of(seed: int) -> Drawn:
    """The call that a seed stands for."""
    return drawn(seed, *CALLS[seed % len(CALLS)])


# What ONNX Runtime computes


def run(form: Form) -> dict[str, Raw | None]:
    """All values of a model; None for what is no tensor.

    Raises:
        RefusedError: ONNX Runtime does not load or not run it.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    quiet = onnxruntime.RunOptions()
    quiet.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(form.model.SerializeToString(), options, providers=_PROVIDERS)
        names = [output.name for output in session.get_outputs()]
        feeds = {name: _value(array) for name, array in form.feeds.items()}
        return dict(zip(names, map(raw_of, session.run_with_ort_values(names, feeds, quiet)), strict=True))
    except Exception as error:
        raise RefusedError(str(error)) from error


def _value(array: Array) -> onnxruntime.OrtValue:
    dtype = onnx_dtype(array)
    if dtype.numpy() == array.dtype and array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(f"u{array.itemsize}"), int(dtype))


# What inference states


@contextmanager
def _watched(domain: str, op: str, raised: list[str]) -> Iterator[None]:
    """Note what a rule raises, but for not knowing."""
    rule = RULES.get((domain, op))
    if rule is None:
        yield
        return

    def watched(call: Call) -> Steps | None:
        try:
            return rule(call)
        except Unknown:
            raise
        except Exception as error:
            raised.append(f"the rule raises {type(error).__name__}: {error}")
            raise

    kept: Rule = rule
    RULES[domain, op] = watched
    try:
        yield
    finally:
        RULES[domain, op] = kept


def inferred(form: Form, call: Drawn) -> tuple[dict[str, ir.Value], list[str]]:
    """The values of a model by name, and what the call's rule raised."""
    raised: list[str] = []
    model = ir.from_proto(form.model)
    with _watched(call.domain, call.op, raised):
        shapes.infer_model(model)
    return {str(value.name): value for node in model.graph for value in node.outputs}, raised


def contradictions(values: Mapping[str, ir.Value], form: Form, truth: Mapping[str, Raw | None]) -> Iterator[str]:
    """Where what is stated of a value is not what was computed."""
    for name, raw in truth.items():
        if raw is None:
            continue
        value = values[name]
        said = _contradiction(value, raw, form.binding)
        if said is not None:
            yield f"{name} is {ir.DataType(raw.dtype).name}{list(raw.shape)}, {said}"


def _contradiction(value: ir.Value, raw: Raw, binding: Mapping[str, Dim]) -> str | None:
    known_type = value.type.elem_type if isinstance(value.type, ir.OptionalType) else value.type
    if known_type is not None and (not isinstance(known_type, ir.TensorType) or known_type.dtype != raw.dtype):
        return f"not {value.type}"
    dims = dims_of(value)
    if dims is not None and not _agree([substitute(dim, binding) for dim in dims], list(raw.shape)):
        return f"not [{', '.join(map(str, dims))}] with {dict(binding)}"
    known = all_contents(value)
    if known is not None and not _agree([substitute(one, binding) for one in known], raw.data.reshape(-1).tolist()):
        return f"{raw.data.tolist()}, not {[str(one) for one in known]} with {dict(binding)}"
    return None


def _agree(stated: list[Dim], real: list[Any]) -> bool:
    return len(stated) == len(real) and all(
        one == int(other) for one, other in zip(stated, real, strict=True) if isinstance(one, int)
    )


# What numpy computes


def folded(call: Drawn, model: onnx.ModelProto) -> list[list[ir.TensorProtocol]]:
    """What numpy makes of the call, at once and on demand; nothing where it leaves it alone."""
    if call.domain or call.op not in KERNELS or len(call.nodes) > 1:
        return []
    node = ir.from_proto(model).graph[-1]
    operands = [None if one is None else Operand(tensor_of(one)) for one in call.inputs]
    made: list[list[ir.TensorProtocol]] = []
    folding = Folding(node, operands, call.opset, _LIMIT)
    ways: list[Callable[[], list[Operand] | None]] = [lambda: [Operand(array) for array in compute(folding)]]
    ways.append(lambda: on_demand(folding, from_bytes=0))
    for way in ways:
        try:
            results = way()
        except (UnsupportedHereError, HazardError):
            continue
        if results is not None:
            made.append([one.tensor if one.tensor is not None else tensor_of(one.array) for one in results])
    return made


def _bits(tensor: ir.TensorProtocol) -> tuple[int, tuple[int, ...], Any]:
    shape = tuple(int(dim) for dim in tensor.shape)  # type: ignore[arg-type]
    if tensor.dtype == ir.DataType.STRING:
        return int(tensor.dtype), shape, [bytes(one) for one in Operand(tensor).array.reshape(-1)]
    return int(tensor.dtype), shape, tensor.tobytes()


def _raw_bits(raw: Raw) -> tuple[int, tuple[int, ...], Any]:
    if raw.dtype == ir.DataType.STRING:
        return raw.dtype, raw.shape, list(raw.data.reshape(-1))
    return raw.dtype, raw.shape, raw.data.tobytes()


def misfolded(call: Drawn, made: list[list[ir.TensorProtocol]], truth: Mapping[str, Raw | None]) -> Iterator[str]:
    """Where numpy computes something else than ONNX Runtime."""
    for results in made:
        for name, tensor in zip(call.nodes[0].output, results, strict=False):
            raw = truth.get(name)
            if raw is not None and _bits(tensor) != _raw_bits(raw):
                really = f"{ir.DataType(raw.dtype).name}{list(raw.shape)} {_shown(raw.data)}"
                yield f"{name} is {really}, not {tensor.dtype} {_shown(tensor.numpy())}"


def _shown(array: Array) -> str:
    return np.array2string(array, threshold=24, separator=",").replace("\n", "")


# Both


def is_faulty(call: Drawn, raw: Raw | None) -> bool:
    """Whether ONNX Runtime is known to give a shape that contradicts the specification, and no rule can follow it.

    Always where there are no elements, which a symbol cannot rule out:

    - a Loop that makes no trip gives what it scans the shape [0], whatever the body's results are;
    - reductions along negative axes leave the axes there;
    - MatMul does not broadcast the batches.
    """
    if raw is None or call.op not in _FAULTY:
        return False
    return 0 in raw.shape or any(one is not None and not one.size for one in call.inputs)


_FAULTY: Final = frozenset({"Loop", "MatMul", "ArgMax", "ArgMin", *(op for _, op in CALLS if op.startswith("Reduce"))})


class Examined(NamedTuple):
    """What became of a call.

    Attributes:
        ran: Whether ONNX Runtime runs it.
        folded: Whether numpy computes it.
        found: What is wrong.
    """

    ran: bool
    folded: bool
    found: list[str]


def examine(call: Drawn, seed: int, report: Callable[[str], None] = lambda _: None) -> Examined:
    """Check one call.

    Args:
        call: The call.
        seed: Draws which dimensions are symbols.
        report: Told what is about to be done.
    """
    forms = {"fixed": fixed(call, seed), "symbolic": symbolic(call, seed)}
    report("original")
    truth, refusals = _first_run(forms.values())
    report("infer")
    found = []
    for kind, form in forms.items():
        values, raised = inferred(form, call)
        if truth is not None:
            sound = {name: raw for name, raw in truth.items() if not is_faulty(call, raw)}
            found += [f"{kind}: {text}" for text in (*contradictions(values, form, sound), *raised)]
    report("fold")
    made = folded(call, forms["fixed"].model)
    if truth is not None:
        found += [f"numpy: {text}" for text in misfolded(call, made, truth)]
    elif made and not all(_LACKING.search(one) for one in refusals):
        found.append(f"numpy: {_shown(made[0][0].numpy())}, which ONNX Runtime refuses: {refusals[0][:160]}")
    return Examined(truth is not None, bool(made), found)


def _first_run(forms: Iterable[Form]) -> tuple[dict[str, Raw | None] | None, list[str]]:
    """What the first of these computes that runs, and why those before it do not."""
    refusals: list[str] = []
    for form in forms:
        try:
            return run(form), refusals
        except RefusedError as error:
            refusals.append(str(error))
    return None, refusals


def work(first: int, count: int, answers: IO[str]) -> None:
    """Check seeds and write a JSON line before each step and after each seed."""
    for seed in range(first, first + count):

        def say(stage: str, seed: int = seed) -> None:
            answers.write(json.dumps({"seed": seed, "stage": stage}) + "\n")
            answers.flush()

        call = call_of(seed)
        ran, is_folded, found = examine(call, seed, say)
        name = f"{call.domain}::{call.op}".removeprefix("::")
        kinds = [name] * ran + [f"{NUMPY}{name}"] * (ran and is_folded)
        done: dict[str, Any] = {
            "found": [f"{call}: {text}" for text in found],
            "noisy": 0,
            "rewrites": dict.fromkeys(kinds, 1),
        }
        if not ran and not found:
            done = {"rejected": "ONNX Runtime refuses it"}
        answers.write(json.dumps({"seed": seed, **done}) + "\n")
        answers.flush()


def main() -> int:
    """Run from the command line."""
    if sys.argv[1:2] == ["--worker"]:
        with io.TextIOWrapper(take_streams()[1], "utf-8") as answers:
            work(int(sys.argv[2]), int(sys.argv[3]), answers)
        return 0
    parser = argparse.ArgumentParser(prog="python -m fuzzing.shapes", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=10_000, help="how many calls")
    parser.add_argument("--seconds", type=float, default=None, help="stop after this long")
    given = parser.parse_args()
    tally: Tally = campaign(
        given.seed,
        given.count,
        seconds=given.seconds,
        say=lambda text: print(text, flush=True),
        worker="fuzzing.shapes",
    )
    ops, crashes = [name for name in tally.rewrites if not name.startswith(NUMPY)], sum(tally.crashes.values())
    print(
        f"{tally.models} calls of {len(ops)} ops in {tally.seconds:.0f} s, {tally.rejected} refused by ONNX Runtime,"
        f" {crashes} that end its process, {len(tally.found)} failures"
    )
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
