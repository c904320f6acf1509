"""Groups against plain ONNX Runtime on the CPU: calls, memory, creation; each mode in a process of its own, in pairs.

``python -m benchmarks.sessions [--pairs 7] [--json FILE]``
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper as make

from benchmarks.process import ROOT

CPU = "CPUExecutionProvider"
CHAIN = 9
"""Groups that follow one another where the cost of a further group is measured."""
ARGUMENTS = (1, 8, 32)
GROUPS = (1, 8, 32)
LAYERS, WIDTH = 32, 1024
ELEMENTS = 4 << 20
"""Of each value where activations dominate: 16 MB."""
HELD_CALLS = 4
ZOO = ("bert_small__ts17", "lstm_tagger__ts13", "light_squeezenet")
_SECONDS = 0.6
_FIXED_THRESHOLD = {"MALLOC_MMAP_THRESHOLD_": str(128 << 10)}
"""glibc raises its threshold when a large block is freed; whether that happens before or after the next one is taken
depends on ONNX Runtime's threads, and with it whether 120 MB stay with the process. The initial value, fixed, ends
that."""


def main() -> None:
    """Measure everything and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7, help="how often each pair of modes is measured")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ortopt-bench-") as name:
        figures = _measure(Path(name), options.pairs)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def _measure(folder: Path, pairs: int) -> dict[str, Any]:
    return {
        "whole": _whole(folder, pairs),
        "further": _further(folder, pairs),
        "memory": _memory_and_creation(folder, pairs),
        "activations": _activations(folder, pairs),
    }


def _whole(folder: Path, pairs: int) -> list[dict[str, Any]]:
    print("\na model that is one group: microseconds a call (allowed: 2 % or 15 us)")
    rows = []
    for label, path in _whole_models(folder):
        plain, ours = _pairs(("call-plain", path), ("call-ours", path), pairs)
        row = {"model": label, "plain": plain["us"], "ours": ours["us"], "more": _difference(plain, ours, "us")}
        rows.append(row)
        print(f"  {label:24} plain {row['plain']:10.1f}   ours {row['ours']:10.1f}   more {row['more']:8.1f}")
    return rows


def _further(folder: Path, pairs: int) -> list[dict[str, Any]]:
    print(
        f"\na further group: microseconds over its own prepared session call, of {CHAIN} (allowed: 10 + 1 an argument)"
    )
    rows = []
    for count in ARGUMENTS:
        path = folder / f"chain{count}.onnx"
        onnx.save(chain(CHAIN, count), path)
        prepared, ours = _pairs(("prepared", path), ("plan", path), pairs)
        more = _difference(prepared, ours, "us") / CHAIN
        row = {"arguments": count, "prepared": prepared["us"] / CHAIN, "ours": ours["us"] / CHAIN, "more": more}
        rows.append(row)
        print(
            f"  {count:3} arguments   prepared {row['prepared']:8.2f}   in a plan {row['ours']:8.2f}"
            f"   more {more:8.2f}   allowed {10 + count}"
        )
    return rows


def _memory_and_creation(folder: Path, pairs: int) -> list[dict[str, Any]]:
    print(
        f"\nmemory in MB and creation in s, {LAYERS} layers of {WIDTH} x {WIDTH} (allowed: 1.05; creation 1.2 to 2.0)"
    )
    rows = []
    for count in GROUPS:
        path = folder / f"layers{count}.onnx"
        onnx.save(layers(count), path)
        modes = ("create-plain", path), ("create-ours", path)
        plain, ours = _pairs(*modes, pairs)
        held = _pairs(*modes, min(pairs, 3), _FIXED_THRESHOLD)
        for figures, memory in zip((plain, ours), held, strict=True):
            figures.update({key: memory[key] for key in ("anonymous", "peak")})
        rows.append({"groups": count, "plain": plain, "ours": ours})
        print(_ratios(count, plain, ours, ("anonymous", "peak", "seconds")))
    return rows


def _activations(folder: Path, pairs: int) -> list[dict[str, Any]]:
    print(f"\nmemory in MB after {HELD_CALLS} calls, {LAYERS} nodes that pass on {ELEMENTS >> 18} MB (allowed: 1.1)")
    rows = []
    for count in GROUPS:
        path = folder / f"activations{count}.onnx"
        onnx.save(activations(count), path)
        plain, ours = _pairs(("hold-plain", path), ("hold-ours", path), min(pairs, 3), _FIXED_THRESHOLD)
        rows.append({"groups": count, "plain": plain, "ours": ours})
        left = f"   after the session {plain['left']:.2f} -> {ours['left']:.2f}"
        print(_ratios(count, plain, ours, ("anonymous", "peak")) + left)
    return rows


def _ratios(count: int, plain: Mapping[str, Any], ours: Mapping[str, Any], keys: tuple[str, ...]) -> str:
    """A line of figures side by side."""
    return f"  {count:3} groups   " + "   ".join(
        f"{key} {plain[key]:8.2f} -> {ours[key]:8.2f} ({ours[key] / plain[key]:.2f})" for key in keys
    )


def _pairs(
    first: tuple[str, Path], second: tuple[str, Path], count: int, variables: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Medians of two modes, measured in turn, with these environment variables; ``runs`` has all of them."""
    found: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
    for i in range(count):
        order = ((0, first), (1, second)) if i % 2 == 0 else ((1, second), (0, first))
        for where, (mode, path) in order:
            found[where].append(_child(mode, path, variables or {}))
    middle = [{key: statistics.median(run[key] for run in runs) for key in runs[0]} for runs in found]
    return {**middle[0], "runs": found[0]}, {**middle[1], "runs": found[1]}


def _difference(first: dict[str, Any], second: dict[str, Any], key: str) -> float:
    """The median of the pairs' differences."""
    return float(statistics.median(b[key] - a[key] for a, b in zip(first["runs"], second["runs"], strict=True)))


def _child(mode: str, path: Path, variables: Mapping[str, str]) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.sessions", "child", mode, str(path)]
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


# Models


def _whole_models(folder: Path) -> Iterator[tuple[str, Path]]:
    from ortopt import zoo

    path = folder / "tiny.onnx"
    onnx.save(chain(1, 1), path)
    yield "tiny", path
    for name in ZOO:
        yield name, Path(zoo.cached(name))


def _group(number: int, inputs: list[str], nodes: list[onnx.NodeProto], weights: int) -> onnx.FunctionProto:
    function = make.make_function("ortopt.group", f"group_{number}", inputs, ["r"], nodes, [make.make_opsetid("", 17)])
    for key, value in (("ortopt.provider", CPU), ("ortopt.weights", str(weights))):
        function.metadata_props.add(key=key, value=value)
    return function


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    output: onnx.ValueInfoProto,
    functions: list[onnx.FunctionProto],
    **parts: Any,
) -> onnx.ModelProto:
    graph = make.make_graph(nodes, "main", inputs, [output], **parts)
    opsets = [make.make_opsetid("", 17), make.make_opsetid("ortopt.group", 1)]
    return make.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def chain(groups: int, arguments: int) -> onnx.ModelProto:
    """Groups of tiny nodes that follow one another; each takes so many arguments."""
    info = make.make_tensor_value_info
    names = [f"x{i}" for i in range(arguments)]
    nodes, functions = [], []
    for i in range(groups):
        before = names[0] if i == 0 else f"t{i - 1}"
        nodes.append(make.make_node(f"group_{i}", [before, *names[1:]], [f"t{i}"], domain="ortopt.group"))
        inner = [make.make_node("Relu", ["a0"], ["s0"])]
        inner += [make.make_node("Add", [f"s{j - 1}", f"a{j}"], [f"s{j}"]) for j in range(1, arguments)]
        inner.append(make.make_node("Neg", [f"s{arguments - 1}"], ["r"]))
        functions.append(_group(i, [f"a{j}" for j in range(arguments)], inner, 0))
    types = [info(f"t{i}", onnx.TensorProto.FLOAT, ["N"]) for i in range(groups - 1)]
    inputs = [info(name, onnx.TensorProto.FLOAT, ["N"]) for name in names]
    return _model(nodes, inputs, info(f"t{groups - 1}", onnx.TensorProto.FLOAT, ["N"]), functions, value_info=types)


def layers(groups: int) -> onnx.ModelProto:
    """Layers with weights, cut into groups."""
    info = make.make_tensor_value_info
    generator = np.random.default_rng(0)
    weights, nodes, functions, types = [], [], [], []
    each = LAYERS // groups
    for i in range(groups):
        own = []
        inner = []
        for j in range(each):
            array = generator.standard_normal((WIDTH, WIDTH), np.float32) / np.float32(WIDTH)
            weights.append(onnx.numpy_helper.from_array(array, f"w{i}_{j}"))
            own.append(f"w{i}_{j}")
            inner.append(make.make_node("MatMul", ["a" if j == 0 else f"r{j - 1}", f"b{j}"], [f"m{j}"]))
            inner.append(make.make_node("Relu", [f"m{j}"], ["r" if j == each - 1 else f"r{j}"]))
        before = "x" if i == 0 else f"t{i - 1}"
        nodes.append(make.make_node(f"group_{i}", [before, *own], [f"t{i}"], domain="ortopt.group"))
        functions.append(_group(i, ["a", *(f"b{j}" for j in range(each))], inner, each))
        types.append(info(f"t{i}", onnx.TensorProto.FLOAT, ["N", WIDTH]))
    inputs = [info("x", onnx.TensorProto.FLOAT, ["N", WIDTH])]
    return _model(nodes, inputs, types[-1], functions, initializer=weights, value_info=types[:-1])


def activations(groups: int) -> onnx.ModelProto:
    """Nodes without weights that pass on large values, cut into groups."""
    info = make.make_tensor_value_info
    nodes, functions = [], []
    each = LAYERS // groups
    for i in range(groups):
        names = ["a", *(f"r{j}" for j in range(each - 1)), "r"]
        ops = zip(range(each), names, names[1:], strict=False)
        inner = [make.make_node("Relu" if j % 2 else "Neg", [source], [target]) for j, source, target in ops]
        nodes.append(make.make_node(f"group_{i}", ["x" if i == 0 else f"t{i - 1}"], [f"t{i}"], domain="ortopt.group"))
        functions.append(_group(i, ["a"], inner, 0))
    types = [info(f"t{i}", onnx.TensorProto.FLOAT, ["N"]) for i in range(groups)]
    inputs = [info("x", onnx.TensorProto.FLOAT, ["N"])]
    return _model(nodes, inputs, types[-1], functions, value_info=types[:-1])


# Children


def child(mode: str, path: str) -> dict[str, float]:
    """Measure one mode in this process."""
    return {
        "call-plain": lambda: _calls(_plain(path), path),
        "call-ours": lambda: _calls(_ours(path), path),
        "prepared": lambda: _prepared(path),
        "plan": lambda: _plan(path),
        "create-plain": lambda: _create(_plain, path),
        "create-ours": lambda: _create(_ours, path),
        "hold-plain": lambda: _hold(_plain, path),
        "hold-ours": lambda: _hold(_ours, path),
    }[mode]()


def _options() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    options.log_severity_level = 3
    return options


def _plain(path: str) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path, _options(), providers=[CPU])


def _ours(path: str) -> Any:
    import ortopt

    return ortopt.InferenceSession(path, _options(), providers=[CPU])


def _feeds(session: Any, path: str) -> dict[str, Any]:
    from ortopt import zoo

    name = Path(path).stem
    if name in zoo.names():
        return dict(zoo.inputs(name))
    return {
        one.name: np.ones([4 if isinstance(dim, str) else dim for dim in one.shape], np.float32)
        for one in session.get_inputs()
    }


def _calls(session: Any, path: str) -> dict[str, float]:
    feeds = _feeds(session, path)
    return {"us": _median(lambda: session.run(None, feeds))}


def _plan(path: str) -> dict[str, float]:
    session = _ours(path)
    import onnxruntime

    feeds = _feeds(session, path)
    values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    session.run_with_ort_values(None, values)
    grouped = session._session
    arguments, _ = grouped._arguments(values)
    return {"us": _median(lambda: grouped.execute(arguments, None))}


def _prepared(path: str) -> dict[str, float]:
    """The same groups' sessions, everything bound beforehand."""
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    from ortopt.runtime.onnxruntime_internals import native_device

    session = _ours(path)
    feeds = _feeds(session, path)
    session.run(None, feeds)
    arrays = list(feeds.values())
    runs = []
    for group in session.groups:
        (one,) = group.sessions()
        bound = binding.SessionIOBinding(one)
        for argument, array in zip(group.spec.inputs, arrays, strict=True):
            bound.bind_ortvalue_input(argument.name, binding.OrtValue.ortvalue_from_numpy(array, native_device("cpu")))
        bound.bind_output(group.spec.outputs[0].name, native_device("cpu"))
        runs.append((one.run_with_iobinding, bound))

    def all_groups() -> None:
        for run, bound in runs:
            run(bound, None)

    return {"us": _median(all_groups)}


def _median(call: Callable[[], object]) -> float:
    """Microseconds of a call."""
    for _ in range(3):
        call()
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-6)
    batch = max(1, int(0.01 / once))
    samples: list[float] = []
    end = time.perf_counter() + _SECONDS
    while time.perf_counter() < end or len(samples) < 5:
        start = time.perf_counter()
        for _ in range(batch):
            call()
        samples.append((time.perf_counter() - start) / batch)
    return statistics.median(samples) * 1e6


def _create(open_session: Callable[[str], Any], path: str) -> dict[str, float]:
    """Constructor and first run, and what the process holds then; imports are not counted."""
    import onnxruntime

    import ortopt.runtime.session

    assert onnxruntime is not None
    assert ortopt is not None
    x = {"x": np.ones((4, WIDTH), np.float32)}
    before = _memory()
    start = time.perf_counter()
    session = open_session(path)
    session.run(None, x)
    seconds = time.perf_counter() - start
    after = _memory()
    return {
        "seconds": seconds,
        "anonymous": after["RssAnon"] - before["RssAnon"],
        "peak": after["VmHWM"] - before["VmRSS"],
    }


def _hold(open_session: Callable[[str], Any], path: str) -> dict[str, float]:
    """What the process holds after some calls, what it held at most, and what is left when the session is gone."""
    import onnxruntime

    import ortopt.runtime.session

    assert onnxruntime is not None
    assert ortopt is not None
    x = {"x": np.ones(ELEMENTS, np.float32)}
    before = _memory()
    session = open_session(path)
    for _ in range(HELD_CALLS):
        session.run(None, x)
    after = _memory()
    del session
    gc.collect()
    return {
        "anonymous": after["RssAnon"] - before["RssAnon"],
        "peak": after["VmHWM"] - before["VmRSS"],
        "left": _memory()["RssAnon"] - before["RssAnon"],
    }


def _memory() -> dict[str, float]:
    """Megabytes of this process."""
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    return {key: int(rows[key].split()[0]) / 1024 for key in ("RssAnon", "VmHWM", "VmRSS")}


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(child(sys.argv[2], sys.argv[3])))
    else:
        main()
