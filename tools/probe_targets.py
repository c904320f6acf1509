"""Refresh ``target-ops.json``: which of ONNX's ops the runtimes of the named targets compute as ONNX says.

::

    python -m tools.probe_targets --target openvino --runtime ~/openvino
    python -m tools.probe_targets --target web --runtime onnxruntime-web
    python -m tools.probe_targets --target qnn --runtime ~/qnn --provider qnn

ONNX's own tests of its ops (`onnx.backend.test.case.node`), those of ai.onnx with one node, are run on the runtime
without its optimizations where they can be turned off. Of each op it is kept how many tests were right, and how many
there are, and of ops that are not always right the same of each form; for an ONNX Runtime without those that the one
installed here does not compute, whose kernels are known by themselves. ``--runtime`` is what ``--verify-with`` takes;
of an execution provider those count that it takes itself.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from fuzzing.releases import Runner, difference
from ortopt.analysis.providers import full_names
from ortopt.analysis.targets import OPS, form_attributes, form_places
from ortopt.verification import runtimes
from ortopt.verification.process import WorkerError

_HELPED: Final = "fallback to CPU EP has been explicitly disabled"  # ONNX Runtime's words

_OF_FORMS: Final = tuple(getattr(onnx.AttributeProto, name) for name in ("FLOAT", "INT", "STRING", "STRINGS"))

_GATES: Final = {"GRU": 3, "LSTM": 4, "RNN": 1}
_DIRECTIONS: Final = {"forward": 1, "reverse": 1, "bidirectional": 2}
_SIZE: Final = 4
_INITIAL_OPSET: Final = 14

_NEWEST_IR: Final = 10
"""IR version that tests are given, where their opset does not need a later one: runtimes refuse newer ones."""


def cases() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any], list[Any]]]:
    """ONNX's tests of one node: the op, a model, inputs and outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)  # type: ignore[no-untyped-call]
    for case in found:
        model = case.model
        if model is None or len(model.graph.node) != 1 or model.graph.node[0].domain or not case.data_sets:
            continue
        inputs, outputs = case.data_sets[0]
        if not all(isinstance(array, np.ndarray | np.generic) for array in (*inputs, *outputs)):
            continue  # sequences
        inputs, outputs = list(map(np.asarray, inputs)), list(map(np.asarray, outputs))
        version = max(one.version for one in model.opset_import if not one.domain)
        least = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", version)])
        model.ir_version = max(least, min(model.ir_version, _NEWEST_IR))
        names = [value.name for value in model.graph.input]
        given = dict(zip(names, inputs, strict=False))
        yield model.graph.node[0].op_type, model, given, list(outputs)
        is_comparison = all(array.dtype == np.bool_ for array in outputs)
        for kind in (ir.DataType.INT64, ir.DataType.FLOAT) if is_comparison else (ir.DataType.INT64,):
            other = _of_type(model, kind)
            if other is not None:
                cast = [
                    array.astype(kind.numpy()) if array.dtype == np.int32 else array for array in (*inputs, *outputs)
                ]
                given = dict(zip(names, cast[: len(inputs)], strict=False))
                yield model.graph.node[0].op_type, other, given, cast[len(inputs) :]


def recurrent_layers() -> Iterator[tuple[str, onnx.ModelProto, dict[str, Any], list[Any]]]:
    """What ONNX has no tests of and models have: layers with initial states, and GRUs as Keras and PyTorch have them.

    What is expected is what ONNX Runtime computes without optimizations.
    """
    rng = np.random.default_rng(0)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for (op, gates), (direction, count) in itertools.product(_GATES.items(), _DIRECTIONS.items()):
        state = (count, 2, _SIZE)
        shapes = {
            "x": (5, 2, 3),
            "w": (count, gates * _SIZE, 3),
            "r": (count, gates * _SIZE, _SIZE),
            "b": (count, 2 * gates * _SIZE),
            "h": state,
            **({"c": state} if op == "LSTM" else {}),
        }
        results = ["y", "y_h", "y_c"][: len(shapes) - 3]
        outputs = _typed(dict(zip(results, [(5, *state), state, state], strict=False)))
        for names, after in itertools.product((["x", "w", "r", "b"], list(shapes)), (0, 1) if op == "GRU" else (0,)):
            given = {name: rng.standard_normal(shapes[name]).astype(np.float32) for name in names}
            settings = {"linear_before_reset": after} if op == "GRU" else {}
            places = names if "h" not in names else [*names[:4], "", *names[4:]]
            node = onnx.helper.make_node(op, places, results, hidden_size=_SIZE, direction=direction, **settings)
            model = onnx.helper.make_model(
                onnx.helper.make_graph([node], "main", *(_typed({name: shapes[name] for name in names}), outputs)),
                opset_imports=[onnx.helper.make_opsetid("", _INITIAL_OPSET)],
                ir_version=_NEWEST_IR,
            )
            session = onnxruntime.InferenceSession(model.SerializeToString(), options)
            yield op, model, given, session.run(None, given)


def _typed(shapes: dict[str, tuple[int, ...]]) -> list[onnx.ValueInfoProto]:
    """Values of single precision."""
    return [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]


def _of_type(model: onnx.ModelProto, kind: ir.DataType) -> onnx.ModelProto | None:
    """A test of 32-bit integers with numbers of a type that models have more often; None where there is none."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    values = (*other.graph.input, *other.graph.output)
    short = [one for one in values if one.type.tensor_type.elem_type == onnx.TensorProto.INT32]
    for value in short:
        value.type.tensor_type.elem_type = kind.value
    try:
        onnx.checker.check_model(other, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return other if short else None


def forms(model: onnx.ModelProto, inputs: dict[str, Any]) -> Iterator[tuple[onnx.ModelProto, dict[str, Any]]]:
    """A test as it is, in an older opset, and with constants for sizes, axes and the like, which models seldom compute.

    Args:
        model: The test's model.
        inputs: Its inputs.
    """
    older = _of_older_opset(model)
    for one in (model, older):
        if one is not None:
            yield one, inputs
            yield from _with_constants(one, inputs)


def _of_older_opset(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """A test in the last opset before its op's newest version; None where that has no such op, or not this form."""
    (node,) = model.graph.node
    (current,) = (one.version for one in model.opset_import if not one.domain)
    version = onnx.defs.get_schema(node.op_type, current).since_version - 1
    older = onnx.ModelProto()
    older.CopyFrom(model)
    del older.opset_import[:]
    older.opset_import.append(onnx.helper.make_opsetid("", version))
    older.ir_version = _NEWEST_IR
    try:
        onnx.checker.check_model(older)
    except onnx.checker.ValidationError:
        return None
    return older


def _with_constants(model: onnx.ModelProto, inputs: dict[str, Any]) -> Iterator[tuple[onnx.ModelProto, dict[str, Any]]]:
    """A test with initializers for small integers, and for all inputs but the first."""
    first = next(iter(inputs), None)
    fixed = {name for name, array in inputs.items() if name != first and array.dtype.kind in "iub" and array.ndim < 2}
    for constant in (fixed, inputs.keys() - {first}):
        if constant:
            other = onnx.ModelProto()
            other.CopyFrom(model)
            for name in constant:
                other.graph.initializer.append(onnx.numpy_helper.from_array(inputs[name], name))
            kept = [value for value in other.graph.input if value.name not in constant]
            del other.graph.input[:]
            other.graph.input.extend(kept)
            yield other, {name: array for name, array in inputs.items() if name not in constant}


def _is_right(runner: Runner, model: onnx.ModelProto, inputs: dict[str, Any], outputs: list[Any]) -> bool | None:
    """Whether a test is right; None where the CPU would have to help."""
    try:
        return not difference(runner.run(model.SerializeToString(), inputs), outputs, runner.rounding)
    except WorkerError as error:
        return None if _HELPED in str(error) else False
    except (TypeError, ValueError):
        return False


Forms: TypeAlias = list[dict[str, Any]]


def counted(runtime: str, provider: str = "") -> tuple[str, dict[str, list[int]], dict[str, Forms]]:
    """What ONNX's tests say of a runtime.

    Args:
        runtime: As ``--verify-with`` takes it.
        provider: The execution provider on which it runs; none if empty.

    Returns:
        Its name and release, of each op how many tests were right there and how many there are, and of those that are
        not always right the same of each form.
    """
    found = runtimes.find(runtime, providers=full_names(provider))
    table: dict[str, list[int]] = {}
    tested: dict[str, Forms] = {}
    with contextlib.ExitStack() as stack:
        runner, here = (
            stack.enter_context(Runner(Path(stack.enter_context(tempfile.TemporaryDirectory())), one, helps=False))
            for one in (found, None)
        )
        for op, model, inputs, outputs in itertools.chain(cases(), recurrent_layers()):
            answers = {_is_right(runner, *form, outputs) for form in forms(model, inputs)}
            if answers == {None}:
                continue
            right = True in answers
            if right or not found.name.startswith("ONNX Runtime") or _is_right(here, model, inputs, outputs):
                row = table.setdefault(op, [0, 0])
                row[0] += right
                row[1] += 1
                _count(tested.setdefault(op, []), model, inputs, right=right)
    partly = {op: known for op, known in sorted(tested.items()) if table[op][0] < table[op][1]}
    return found.name, dict(sorted(table.items())), partly


def _count(known: Forms, model: onnx.ModelProto, inputs: dict[str, Any], *, right: bool) -> None:
    """Count a test among those of its form."""
    (node,) = model.graph.node
    given = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute if one.type in _OF_FORMS}
    first = next(iter(inputs.values()), None)
    dtype = "" if first is None else ir.DataType.from_numpy(first.dtype).name.lower()
    about = {
        "attributes": form_attributes(node.op_type, given),
        "dtype": dtype,
        "given": form_places(node.op_type, list(map(bool, node.input)), list(map(bool, node.output))),
    }
    form = next((one for one in known if one.items() >= about.items()), None)
    if form is None:
        known.append(form := {**about, "right": 0, "tests": 0})
    form["right"] += right
    form["tests"] += 1


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.probe_targets", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--target", required=True)
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--provider", default="")
    given = parser.parse_args()
    known = json.loads(OPS.read_text(encoding="utf-8")) if OPS.exists() else {}
    name, table, tested = counted(given.runtime, given.provider)
    entry = {"runtime": name, "date": datetime.date.today().isoformat(), "ops": table, "forms": tested}
    known[given.target] = entry
    rows = [
        f"{json.dumps(target)}: {{\n"
        + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in entry.items())
        + "\n }"
        for target, entry in sorted(known.items())
    ]
    OPS.write_text("{" + ",\n ".join(rows) + "}\n", encoding="utf-8")
    right = sum(count == tests for count, tests in table.values())
    print(
        f"{name}: {right} of {len(table)} ops right in all tests; in none:",
        ", ".join(op for op, (count, _) in table.items() if not count),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
