"""The smallest models that show what one rewrite did, or on which one transformer fails; and their folder."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import platform
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
from msgspec import Struct

from ortopt._version import __version__
from ortopt.analysis.providers import distributions, installed_version
from ortopt.api import Optimization
from ortopt.errors import OrtoptError, OutputError, TransformerError, VerificationError
from ortopt.graph import scope
from ortopt.options import Options, as_arguments
from ortopt.reporting.excerpt import around, same_content, section, storable
from ortopt.semantics import constant_content
from ortopt.serialization.save import save
from ortopt.terminal_text import one_line, quoted
from ortopt.verification.runner import outputs_of
from ortopt.verification.verify import Verification, verify

if TYPE_CHECKING:
    from ortopt.optimization.bisection import Blame


MIN_WEIGHT = 9
"""Constants of floats with fewer elements are no weights: they say what is computed."""

MAX_TRIES = 12
"""How often it is tried whether a failure survives noise in place of weights: of all, of halves, of quarters ..."""


class _Weight(Struct, frozen=True):
    """A constant that may be confidential.

    Attributes:
        name: Its name, or that of its Constant's result.
        tensor: What it holds.
        put: Sets its content.
    """

    name: str
    tensor: ir.TensorProtocol
    put: Callable[[ir.TensorProtocol], None]


def _weights(model: ir.Model) -> dict[tuple[str, int], _Weight]:
    """A model's weights, in all graphs, by name and a number: two subgraphs may have the same names."""
    weights: dict[tuple[str, int], _Weight] = {}

    def add(name: str, tensor: ir.TensorProtocol | None, put: Callable[[ir.TensorProtocol], None]) -> None:
        if tensor is None or tensor.size < MIN_WEIGHT or not _may_be_weight(tensor.dtype):
            return
        number = 0
        while (name, number) in weights:
            number += 1
        weights[name, number] = _Weight(name, tensor, put)

    for graph in scope.graphs(model):
        for name, value in graph.initializers.items():
            add(name, value.const_value, functools.partial(setattr, value, "const_value"))
        for node in graph:
            if node.op_type == "Constant" and not node.domain:
                add(node.outputs[0].name or "", constant_content(node), functools.partial(_set_content, node))
    return weights


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


def replace_weights(models: Sequence[ir.Model], survives: Callable[[], bool]) -> tuple[list[str], list[str]]:
    """Replace the weights of models by seeded noise, the same in all, as far as what they show survives that.

    Args:
        models: A model, or two versions of it.
        survives: Whether the models still show it.

    Returns:
        The names of the weights that were replaced, and of those that were kept.
    """
    tables = [_weights(model) for model in models]
    first, last = tables[0], tables[-1]
    keys = [key for key, weight in first.items() if key not in last or same_content(weight.tensor, last[key].tensor)]
    pending = [keys] if keys else []
    replaced: list[str] = []
    tries = 0
    while pending and tries < MAX_TRIES:
        chosen = pending.pop(0)
        originals = [weights[key] for key in chosen for weights in tables if key in weights]
        for seed, key in enumerate(chosen):
            for weights in tables:
                if key in weights:
                    weights[key].put(_noise(first[key].tensor, seed))
        tries += 1
        if survives():
            replaced += [first[key].name for key in chosen]
            for weights in tables:
                for key in chosen:
                    weights.pop(key, None)
            continue
        for weight in originals:
            weight.put(weight.tensor)
        if len(chosen) > 1:
            half = len(chosen) // 2
            pending += [chosen[:half], chosen[half:]]
    return sorted(replaced), sorted({weight.name for weights in tables for weight in weights.values()})


@dataclass(slots=True)
class Reproducer:
    """Models, inputs and commands that show something.

    Attributes:
        before: The model, or the part of it, before the rewrite.
        after: The same after it; None where a transformer failed.
        inputs: Arrays by name.
        whole: Why it is the whole model; empty where it is a part.
        noise: Names of weights that are seeded noise.
        kept: Names of weights that are the model's own.
        reason: How the two differ, or how the transformer fails.
        repeats: Arguments with which optimizing ``before.onnx`` shows it again; None where it does not.
        expected: The outputs of ``before``.
        actual: The outputs of ``after``.
        commands: Command lines to be run in the folder.
        files: Names of the files that were written.
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
        blame: The rewrite, and the models around it.
        options: Options of the run.
    """
    providers, rewrite = options.providers, blame.culprit.rewrite
    excerpt = around(blame, options)
    before, after, inputs = excerpt or (blame.before, blame.after, blame.inputs)
    reproducer = Reproducer(before, after, inputs)
    if excerpt is None:
        reproducer.whole = "no part of the model shows the difference by itself"
        if rewrite.graph != (before.graph.name or "main"):
            reproducer.whole = f"the rewrite is in {rewrite.graph}, and no part around it shows the difference"

    def compare() -> Verification:
        return verify(before, after, inputs=inputs, providers=providers)

    reproducer.noise, reproducer.kept = replace_weights((before, after), lambda: compare().status == "differs")
    reproducer.reason = compare().reason
    reproducer.expected = outputs_of(before, dict(inputs), providers=providers)
    with contextlib.suppress(VerificationError):  # it may not run
        reproducer.actual = outputs_of(after, dict(inputs), providers=providers)
    alone = _alone(options, rewrite.transformer, rewrite.level)
    if _differs(before, inputs, alone):
        reproducer.repeats = as_arguments(alone)
    return reproducer


def of_failure(run: Optimization, failure: TransformerError) -> Reproducer:
    """The smallest run of nodes on which a transformer fails.

    Args:
        run: The run in which it failed.
        failure: The failure.
    """
    alone = dataclasses.replace(_alone(run.options, failure.transformer, failure.level), check_each=True)
    whole = run.model_before(failure)
    reproducer = Reproducer(whole, None, {}, "no part of the model makes it fail", reason=failure.reason)
    if _fails(whole, alone):
        reproducer.repeats = as_arguments(alone)
        part = _failing_part(whole, alone)
        if part is not None:
            reproducer.before, reproducer.whole = part, ""
    reproducer.noise, reproducer.kept = replace_weights(
        (reproducer.before,), lambda: reproducer.repeats is not None and _fails(reproducer.before, alone)
    )
    return reproducer


def _failing_part(whole: ir.Model, options: Options) -> ir.Model | None:
    """The fewest adjacent nodes of a model on which a run fails, found by halving; None if it takes all of them."""
    nodes = list(whole.graph)
    low, high = 0, len(nodes)
    smallest: ir.Model | None = None
    while high - low > 1:
        middle = (low + high) // 2
        halves = ((low, middle), (middle, high), ((low + middle) // 2, (middle + high + 1) // 2))
        for start, end in halves:
            part = None if end - start >= high - low else section(whole, nodes[start:end])
            if part is not None and _fails(part, options):
                smallest, low, high = part, start, end
                break
        else:
            break
    return smallest


# -- repetition -------------------------------------------------------------------------------------------------------


def _alone(options: Options, transformer: str, level: int) -> Options:
    """Options under which one transformer runs and nothing else."""
    return Options(
        level=level,
        providers=options.providers,
        target=options.target,
        force_forms=options.force_forms,
        march=options.march,
        for_threads=options.for_threads,
        min_onnxruntime=options.min_onnxruntime,
        only=(transformer,),
        steps=options.steps,
        strict=True,
        repair=False,
        keep_functions=options.keep_functions,
    )


def _differs(model: ir.Model, inputs: Mapping[str, Any], options: Options) -> bool:
    try:
        run = Optimization(model, options)
        run.transform()
        return verify(model, run.model, inputs=inputs, providers=options.providers).status == "differs"
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


PACKAGES = ("onnx", "onnx-ir", "numpy")


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


def write(reproducer: Reproducer, folder: Path, title: str) -> None:
    """Write a folder.

    Args:
        reproducer: The reproducer; its ``commands`` and ``files`` are filled in.
        folder: New, or empty.
        title: What it shows, in one line.

    Raises:
        OutputError: If it cannot be written.
    """
    with _output_errors(folder):
        folder.mkdir(exist_ok=True)
    for name, model in (("before.onnx", reproducer.before), ("after.onnx", reproducer.after)):
        if model is not None:
            save(model, folder / name, external_data="auto")
    with _output_errors(folder):
        for name, values in (
            ("inputs.npz", reproducer.inputs),
            ("expected.npz", reproducer.expected),
            ("actual.npz", reproducer.actual),
        ):
            if values and storable(values):
                np.savez(folder / name, **{key: _plain(value) for key, value in values.items()})
        reproducer.commands = _commands(reproducer, (folder / "inputs.npz").is_file())
        (folder / "versions.json").write_text(json.dumps(versions(), indent=2) + "\n", encoding="utf-8")
        (folder / "README.txt").write_text(_readme(reproducer, title), encoding="utf-8")
        reproducer.files = sorted(path.name for path in folder.iterdir())


@contextlib.contextmanager
def _output_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(f"cannot write {quoted(str(folder))}: {error.strerror or error}") from error


def _commands(reproducer: Reproducer, stored: bool) -> list[str]:
    inputs = ["--inputs", "inputs.npz"] * stored
    commands = [] if reproducer.after is None else [["ortopt", "verify", "before.onnx", "after.onnx", *inputs]]
    if reproducer.repeats is not None:
        more = inputs if reproducer.after is not None else ["--no-verify"]
        commands.append(["ortopt", "optimize", "before.onnx", *reproducer.repeats, *more])
    return [shlex.join(command) for command in commands]


def _readme(reproducer: Reproducer, title: str) -> str:
    lines = [title, reproducer.reason, ""]
    lines += ["To reproduce it, in this folder:", "", *(f"    {command}" for command in reproducer.commands), ""]
    lines += [f"This is the whole model: {reproducer.whole}." if reproducer.whole else "This is a part of the model."]
    lines += [f"Weights that are seeded noise: {', '.join(reproducer.noise) or 'none'}"]
    lines += [f"Weights that are the model's own: {', '.join(reproducer.kept) or 'none'}", ""]
    return "\n".join(line if line.startswith("    ") else one_line(line) for line in lines)


def _plain(value: Any) -> Any:
    return value.astype(str) if value.dtype.kind == "O" else value


def versions() -> dict[str, str]:
    """The versions of what took part; ONNX Runtime by the names of its builds, or by its own where none is known."""
    known = {"ortopt": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            known[package] = importlib.metadata.version(package)
    own = {"onnxruntime": installed_version()} if installed_version() else {}
    return known | (distributions() or own)
