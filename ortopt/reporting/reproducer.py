"""A folder that shows what one rewrite did: the smallest model around it before and after, inputs, and both answers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import platform
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ortopt._version import __version__
from ortopt.api import Optimization
from ortopt.errors import OrtoptError, OutputError, TransformerError, VerificationError
from ortopt.graph import scope
from ortopt.graph.symbolic import INVENTED
from ortopt.semantics import constant_content, same_constant, subgraphs
from ortopt.serialization.load import load
from ortopt.serialization.save import save
from ortopt.terminal_text import one_line, quoted
from ortopt.verification.verify import Verification, outputs_of, verify

if TYPE_CHECKING:
    import onnx

    from ortopt.optimization.bisection import Blame
    from ortopt.options import Options

RADII = (0, 1, 2, 4, 8, 16, 32)
"""How many nodes around what a rewrite changed are taken along, until the outputs differ."""

LEAST_WEIGHT = 9
"""Constants of floats with fewer elements are no weights: they say what is computed."""

MAX_TRIES = 12
"""How often it is tried whether a failure survives noise in place of weights: of all, of halves, of quarters ..."""

LARGEST_COMPARED = 1 << 20
"""Constants of more bytes that have the same name before and after are taken to be the same."""

PACKAGES = ("onnx", "onnx-ir", "numpy", "onnxruntime", "onnxruntime-gpu")


class _Unfit(Exception):  # noqa: N818 -- a reason to take the whole model
    """A part of a model cannot stand alone; the message says why."""


@dataclass(slots=True)
class Reproducer:
    """What a folder shows.

    Attributes:
        before: The model, or the part of it, before the rewrite.
        after: The same after it; None where a transformer failed.
        inputs: Arrays by name.
        whole: Why it is the whole model; empty where it is a part.
        noise: Weights that are seeded noise.
        kept: Weights that are the model's own.
        reason: How the two differ, or how the transformer fails.
        repeats: Options under which optimizing ``before.onnx`` shows it again; None where nothing was found to.
        expected: What ``before`` gives.
        actual: What ``after`` gives.
        commands: One line each, to be run in the folder.
        files: What was written.
    """

    before: ir.Model
    after: ir.Model | None
    inputs: Mapping[str, Any]
    whole: str = ""
    noise: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    reason: str = ""
    repeats: list[str] | None = None
    expected: Mapping[str, Any] = field(default_factory=dict)
    actual: Mapping[str, Any] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def of_rewrite(blame: Blame, options: Options) -> Reproducer:
    """The smallest model around a rewrite that shows what it did.

    Args:
        blame: Which rewrite, and the models around it.
        options: Those of the run.
    """
    providers = options.providers
    made = _part(blame, options) or Reproducer(blame.before, blame.after, blame.inputs)
    if made.before is blame.before:
        made.whole = "no part of the model shows the difference by itself"
        if blame.culprit.rewrite.graph != (blame.before.graph.name or "main"):
            made.whole = f"the rewrite is in {blame.culprit.rewrite.graph}, and no part around it shows the difference"
    after = made.after
    assert after is not None

    def compare() -> Verification:
        return verify(made.before, after, inputs=made.inputs, providers=providers)

    _make_noise(made, lambda: compare().status == "differs")
    made.reason = compare().reason
    made.expected = outputs_of(made.before, dict(made.inputs), providers=providers)
    with contextlib.suppress(VerificationError):  # it may be that it does not run
        made.actual = outputs_of(after, dict(made.inputs), providers=providers)
    rewrite = blame.culprit.rewrite
    again = _alone(options, rewrite.transformer, rewrite.level)
    if _differs(made, again):
        made.repeats = _as_arguments(again, rewrite.transformer)
    return made


def of_failure(run: Optimization, failure: TransformerError) -> Reproducer:
    """The smallest run of nodes on which a transformer fails.

    Args:
        run: The run in which it failed.
        failure: How.
    """
    again = dataclasses.replace(_alone(run.options, failure.transformer, failure.level), check_each=True)
    whole = run.model_before(failure)
    found = Reproducer(whole, None, {}, "no part of the model makes it fail", reason=failure.reason)
    if _fails(whole, again):
        found.repeats = [*_as_arguments(again, failure.transformer), "--strict", "--check-each"]
        nodes = list(whole.graph)
        low, high = 0, len(nodes)
        while high - low > 1:
            middle = (low + high) // 2
            halves = ((low, middle), (middle, high), ((low + middle) // 2, (middle + high + 1) // 2))
            for start, end in halves:
                part = None if end - start >= high - low else _section(whole, nodes[start:end])
                if part is not None and _fails(part, again):
                    found.before, found.whole, low, high = part, "", start, end
                    break
            else:
                break
    _make_noise(found, lambda: found.repeats is not None and _fails(found.before, again))
    return found


# -- a part of a model ------------------------------------------------------------------------------------------------


class _Outline:
    """The main graph of a model by names: those of the same model before and after a rewrite can be compared."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes = list(model.graph)
        calls = _Calls(model)
        self.keys = [_key(node, calls) for node in self.nodes]
        self.values: dict[str, ir.Value] = {value.name or "": value for value in model.graph.inputs}
        self.users: dict[str, list[int]] = {}
        self.maker: dict[str, int] = {}
        self.needs: list[list[str]] = []
        for index, node in enumerate(self.nodes):
            needed = [value for value in (*node.inputs, *scope.captured(node)) if value is not None and value.name]
            self.needs.append([value.name or "" for value in needed])
            for value in needed:
                self.values.setdefault(value.name or "", value)
                self.users.setdefault(value.name or "", []).append(index)
            for value in node.outputs:
                self.maker[value.name or ""] = index
                self.values[value.name or ""] = value
        self.outputs = {value.name for value in model.graph.outputs}

    def around(self, chosen: set[int]) -> set[int]:
        """Nodes that give to, or take from, some nodes."""
        found = {self.maker[name] for index in chosen for name in self.needs[index] if name in self.maker}
        for index in chosen:
            for value in self.nodes[index].outputs:
                found.update(self.users.get(value.name or "", ()))
        return found

    def given(self, chosen: set[int]) -> dict[str, bool]:
        """What nodes compute: whether it is needed outside of them."""
        return {
            name: name in self.outputs or any(user not in chosen for user in self.users.get(name, ()))
            for index in sorted(chosen)
            for value in self.nodes[index].outputs
            if (name := value.name)
        }


class _Calls:
    """Which functions nodes run, and what is in them."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._contents: dict[ir.OperatorIdentifier, bytes] = {}

    def of(self, nodes: Iterable[ir.Node]) -> list[ir.Function]:
        """The functions that nodes call, and those that these call, in the model's order."""
        if not self._functions:
            return []
        found: set[ir.OperatorIdentifier] = set()
        pending = list(nodes)
        while pending:
            node = pending.pop()
            pending.extend(inner for graph in subgraphs(node) for inner in graph)
            called = node.op_identifier()
            if called in self._functions and called not in found:
                found.add(called)
                pending.extend(self._functions[called])
        return [function for identifier, function in self._functions.items() if identifier in found]

    def content(self, function: ir.Function) -> bytes:
        """What tells a function from another version of it."""
        known = self._contents.get(function.identifier())
        if known is None:
            proto = ir.to_proto(function)
            for node in proto.node:
                del node.metadata_props[:]
            known = self._contents[function.identifier()] = proto.SerializeToString(deterministic=True)
        return known


def _key(node: ir.Node, calls: _Calls) -> bytes:
    proto = ir.to_proto(node)
    del proto.metadata_props[:]
    key: bytes = proto.SerializeToString(deterministic=True)
    return b"".join((key, *(calls.content(function) for function in calls.of([node]))))


def _part(blame: Blame, options: Options) -> Reproducer | None:
    """The nodes that differ, and no more around them than it takes to have outputs that differ; None: all of them."""
    one, other = _Outline(blame.before), _Outline(blame.after)
    changed = _changed(one, other)
    chosen = changed
    grown = 0
    for radius in RADII:
        while grown < radius:
            keys = {side.keys[i] for side, set_ in zip((one, other), chosen, strict=True) for i in side.around(set_)}
            chosen = tuple(  # type: ignore[assignment]
                set_ | {i for i, key in enumerate(side.keys) if key in keys}
                for side, set_ in zip((one, other), chosen, strict=True)
            )
            grown += 1
        if len(chosen[0]) == len(one.nodes) and len(chosen[1]) == len(other.nodes):
            return None
        try:
            made = _cut(one, other, chosen, blame.inputs, options)
            found = verify(made.before, made.after, inputs=made.inputs, providers=options.providers)  # type: ignore[arg-type]
        except (_Unfit, OrtoptError, ValueError, TypeError):
            continue
        if found.status == "differs":
            return made
    return None


def _changed(one: _Outline, other: _Outline) -> tuple[set[int], set[int]]:
    """The nodes that only one of the two has, or whose constants differ."""
    differing = {
        name
        for name, value in one.model.graph.initializers.items()
        if name in other.model.graph.initializers
        and not _same(value.const_value, other.model.graph.initializers[name].const_value)
    }
    found = []
    for side, keys in ((one, set(other.keys)), (other, set(one.keys))):
        found.append(
            {i for i, key in enumerate(side.keys) if key not in keys or not differing.isdisjoint(side.needs[i])}
        )
    return found[0], found[1]


def _same(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    if one is other or one is None or other is None or one.nbytes > LARGEST_COMPARED:
        return True
    return same_constant(one, other)


def _cut(
    one: _Outline, other: _Outline, chosen: tuple[set[int], set[int]], given: Mapping[str, Any], options: Options
) -> Reproducer:
    computed, recomputed = one.given(chosen[0]), other.given(chosen[1])
    outputs = [name for name, needed in computed.items() if name in recomputed and (needed or recomputed[name])]
    if not outputs:
        raise _Unfit("nothing of it is needed outside")
    inputs: dict[str, None] = {}
    for side, set_ in ((one, chosen[0]), (other, chosen[1])):
        own = side.given(set_)
        for index in sorted(set_):
            inputs.update((n, None) for n in side.needs[index] if n not in own and not _is_constant(side.values[n]))
    captured = _capture(one, list(inputs), given, options)
    before = _section(one.model, [one.nodes[i] for i in sorted(chosen[0])], outputs, [one.values[n] for n in inputs])
    inputs_after = [other.values.get(name, one.values[name]) for name in inputs]
    after = _section(other.model, [other.nodes[i] for i in sorted(chosen[1])], outputs, inputs_after)
    if before is None or after is None:
        raise _Unfit("it is no model by itself")
    return Reproducer(before, after, captured)


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and value.const_value is not None


def _capture(one: _Outline, names: Sequence[str], given: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """What values are when the model runs on its inputs."""
    missing = [name for name in names if name not in given]
    if any(name not in one.maker for name in missing):
        raise _Unfit("it needs a value that the model before the rewrite does not have")
    captured: Mapping[str, Any] = {}
    if missing:
        graph = one.model.graph
        had = list(graph.outputs)
        try:
            graph.outputs.extend(one.values[name] for name in missing if name not in one.outputs)
            captured = outputs_of(one.model, dict(given), providers=options.providers)
        finally:
            del graph.outputs[len(had) :]
    found = {name: given[name] if name in given else captured[name] for name in names}
    if not _fits_npz(found):
        raise _Unfit("a value at its border cannot be stored")
    return found


def _section(
    model: ir.Model,
    nodes: Sequence[ir.Node],
    outputs: Sequence[str] | None = None,
    inputs: Sequence[ir.Value] | None = None,
) -> ir.Model | None:
    """Nodes of the main graph as a model of their own; None where they cannot be one.

    Args:
        model: Theirs.
        nodes: The nodes, in order.
        outputs: The names of its outputs; None is all that is needed outside of the nodes.
        inputs: Its inputs; None is all that it needs.
    """
    import onnx

    made = {value.name for node in nodes for value in node.outputs if value.name}
    needed = [value for node in nodes for value in (*node.inputs, *scope.captured(node)) if value is not None]
    outside = dict.fromkeys(value for value in needed if value.name and value.name not in made)
    values = {value.name or "": value for node in nodes for value in node.outputs}
    inside = set(nodes)
    if outputs is None:
        outputs = [
            name
            for name, value in values.items()
            if name and (value.is_graph_output() or any(use.node not in inside for use in value.uses()))
        ]
    if inputs is None:
        inputs = [value for value in outside if not _is_constant(value)]
    proto = onnx.ModelProto(ir_version=model.ir_version, producer_name="ortopt bisect")
    proto.opset_import.extend(onnx.helper.make_opsetid(*one) for one in model.opset_imports.items())
    graph = proto.graph
    graph.name = "part"
    try:
        graph.input.extend(_info(value) for value in inputs)
        graph.output.extend(_info(values[name]) for name in outputs)
        graph.node.extend(ir.to_proto(node) for node in nodes)
        for value in outside:
            if value.const_value is not None and value.is_initializer():
                tensor = ir.to_proto(value.const_value)
                tensor.name = value.name or ""
                graph.initializer.append(tensor)
        proto.functions.extend(ir.to_proto(function) for function in _Calls(model).of(nodes))
        return load(proto)
    except (OrtoptError, _Unfit, ValueError, TypeError, KeyError):
        return None


def _info(value: ir.Value) -> onnx.ValueInfoProto:
    if value.type is None:
        raise _Unfit("a type at its border is not known")
    info: onnx.ValueInfoProto = ir.to_proto(value)
    for dim in info.type.tensor_type.shape.dim:
        if INVENTED in dim.dim_param:
            dim.ClearField("dim_param")
    del info.metadata_props[:]
    return info


# -- weights ----------------------------------------------------------------------------------------------------------


class _Weight(NamedTuple):
    """A constant that somebody may have paid for.

    Attributes:
        name: Its name, or that of its Constant's result.
        tensor: What it holds.
        put: Gives it other content.
    """

    name: str
    tensor: ir.TensorProtocol
    put: Callable[[ir.TensorProtocol], None]


def _weights(model: ir.Model) -> dict[tuple[str, int], _Weight]:
    """A model's weights, wherever they are, by name and a number: names of two subgraphs may be the same."""
    found: dict[tuple[str, int], _Weight] = {}

    def add(name: str, tensor: ir.TensorProtocol | None, put: Callable[[ir.TensorProtocol], None]) -> None:
        if tensor is None or tensor.size < LEAST_WEIGHT or not _may_be_weight(tensor.dtype):
            return
        number = 0
        while (name, number) in found:
            number += 1
        found[name, number] = _Weight(name, tensor, put)

    for graph in scope.graphs(model):
        for name, value in graph.initializers.items():
            add(name, value.const_value, functools.partial(setattr, value, "const_value"))
        for node in graph:
            if node.op_type == "Constant" and not node.domain:
                add(node.outputs[0].name or "", constant_content(node), functools.partial(_set_content, node))
    return found


def _may_be_weight(dtype: ir.DataType) -> bool:
    """Whether it is of floats, or quantized: wider integers are shapes and indices."""
    return dtype.is_floating_point() or (dtype.is_integer() and dtype.bitwidth <= 8)


def _set_content(node: ir.Node, tensor: ir.TensorProtocol) -> None:
    node.attributes.clear()
    node.attributes["value"] = ir.AttrTensor("value", tensor)
    node.outputs[0].const_value = None


def _noise(tensor: ir.TensorProtocol, seed: int) -> ir.TensorProtocol:
    rng = np.random.default_rng(seed)
    shape = tuple(tensor.shape.numpy())
    numbers: np.ndarray[Any, Any]
    if tensor.dtype.is_integer():
        numbers = rng.integers(int(tensor.dtype.min), int(tensor.dtype.max) + 1, shape)
    else:
        numbers = rng.standard_normal(shape) / 8
    return ir.Tensor(numbers.astype(tensor.dtype.numpy()), tensor.dtype, name=tensor.name)


def _make_noise(made: Reproducer, survives: Callable[[], bool]) -> None:
    """Put seeded noise in place of the weights, the same in both models, as far as what is shown survives that."""
    both = [_weights(model) for model in (made.before, made.after) if model is not None]
    one, other = both[0], both[-1]
    keys = [key for key, had in one.items() if key not in other or _same(had.tensor, other[key].tensor)]
    pending = [keys] if keys else []
    tries = 0
    while pending and tries < MAX_TRIES:
        chosen = pending.pop(0)
        had = [weights[key] for key in chosen for weights in both if key in weights]
        for seed, key in enumerate(chosen):
            for weights in both:
                if key in weights:
                    weights[key].put(_noise(one[key].tensor, seed))
        tries += 1
        if survives():
            made.noise += [one[key].name for key in chosen]
            for weights in both:
                for key in chosen:
                    weights.pop(key, None)
            continue
        for weight in had:
            weight.put(weight.tensor)
        if len(chosen) > 1:
            half = len(chosen) // 2
            pending += [chosen[:half], chosen[half:]]
    made.noise.sort()
    made.kept = sorted({weight.name for weights in both for weight in weights.values()})


# -- does it come again -----------------------------------------------------------------------------------------------


def _alone(options: Options, transformer: str, level: int) -> Options:
    """Options under which one transformer runs and nothing else."""
    return dataclasses.replace(
        options,
        level=level,
        only=(transformer,),
        passes=None,
        disable=(),
        enable=(),
        settings={},
        limit=None,
        max_growth=None,
        check_each=False,
        opset=None,
        dims={},
        timeout=None,
        repair=False,
        strict=True,
    )


def _as_arguments(options: Options, transformer: str) -> list[str]:
    arguments = ["--only", transformer, f"-O{options.level}"]
    if options.target.value != "ort":
        arguments += ["--target", options.target.value]
    if options.providers != ("CPUExecutionProvider",):
        arguments += ["--provider", ",".join(options.providers)]
    return [*arguments, *(["--native"] * options.native), *(["--keep-functions"] * options.keep_functions)]


def _differs(made: Reproducer, options: Options) -> bool:
    try:
        run = Optimization(made.before, options)
        run.transform()
        return verify(made.before, run.model, inputs=made.inputs, providers=options.providers).status == "differs"
    except OrtoptError:
        return False


def _fails(model: ir.Model, options: Options) -> bool:
    try:
        Optimization(model, options).transform()
    except TransformerError:
        return True
    except OrtoptError:
        return False
    return False


# -- the folder -------------------------------------------------------------------------------------------------------


def check_folder(path: Path) -> None:
    """Refuse a folder that cannot be made, or holds something.

    Raises:
        OutputError: If it is one.
    """
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise OutputError(f"cannot write {quoted(str(path))}: there is something already")
        if not path.absolute().parent.is_dir():
            raise OutputError(f"cannot write {quoted(str(path))}: there is no folder {quoted(str(path.parent))}")
    except OSError as error:
        raise OutputError(f"cannot write {quoted(str(path))}: {error.strerror or error}") from error


def write(made: Reproducer, folder: Path, what: str) -> None:
    """Write a folder.

    Args:
        made: What it shows; ``commands`` and ``files`` are filled in.
        folder: New, or empty.
        what: What it shows, in one line.

    Raises:
        OutputError: If it cannot be written.
    """
    with _said(folder):
        folder.mkdir(exist_ok=True)
    for name, model in (("before.onnx", made.before), ("after.onnx", made.after)):
        if model is not None:
            save(model, folder / name, external_data="auto")
    with _said(folder):
        for name, values in (("inputs.npz", made.inputs), ("expected.npz", made.expected), ("actual.npz", made.actual)):
            if values and _fits_npz(values):
                np.savez(folder / name, **{key: _plain(value) for key, value in values.items()})
        made.commands = _commands(made, (folder / "inputs.npz").is_file())
        (folder / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n", encoding="utf-8")
        (folder / "README.txt").write_text(_readme(made, what), encoding="utf-8")
        made.files = sorted(path.name for path in folder.iterdir())


@contextlib.contextmanager
def _said(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {quoted(str(folder))}: {error.strerror or error}") from error


def _commands(made: Reproducer, stored: bool) -> list[str]:
    given = ["--inputs", "inputs.npz"] * stored
    commands = [] if made.after is None else [["ortopt", "verify", "before.onnx", "after.onnx", *given]]
    if made.repeats is not None:
        more = [*given, "--no-repair"] if made.after is not None else ["--no-verify"]
        commands.append(["ortopt", "optimize", "before.onnx", *made.repeats, *more])
    return [shlex.join(command) for command in commands]


def _readme(made: Reproducer, what: str) -> str:
    lines = [what, made.reason, ""]
    lines += ["To reproduce it, in this folder:", "", *(f"    {command}" for command in made.commands), ""]
    lines += [f"This is the whole model: {made.whole}." if made.whole else "This is a part of the model."]
    lines += [f"Weights that are seeded noise: {', '.join(made.noise) or 'none'}"]
    lines += [f"Weights that are the model's own: {', '.join(made.kept) or 'none'}", ""]
    return "\n".join(line if line.startswith("    ") else one_line(line) for line in lines)


def versions() -> dict[str, str]:
    """What took part."""
    found = {"ortopt": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _fits_npz(values: Mapping[str, Any]) -> bool:
    """Whether a file of plain arrays holds them: no sequences, no optionals, no types that numpy lacks."""
    return all(
        isinstance(value, np.ndarray) and value.dtype.kind in "biufcOSU" and "\0" not in name and name != "file"
        for name, value in values.items()
    )


def _plain(value: Any) -> Any:
    return value.astype(str) if value.dtype.kind == "O" else value


__all__ = ["Reproducer", "check_folder", "of_failure", "of_rewrite", "versions", "write"]
