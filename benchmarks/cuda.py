"""Groups on CUDA against plain ONNX Runtime's CUDA provider: what a call takes, with and without CUDA graphs.

``python -m benchmarks.cuda [--rounds 5] [--json FILE] [--provider cpu]``

The models are small ones of fixed shapes, where launching costs as much as computing: one step of a decoder with its
cache, at several sizes, and one in which every other block is for the CPU. Each way to run has a process of its own; in
each round all take their turn, in an order that turns too, and ratios are taken within a round. Every result is
compared with plain ONNX Runtime's. ``--provider cpu`` is a dry run of the same code on a machine without a GPU: its
figures say nothing of CUDA.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnx.helper as make

from benchmarks.process import ROOT
from benchmarks.tables import machine, markdown, number, quartiles, speedups

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"

WAYS: Final = {
    "plain": "ONNX Runtime, arrays in and out",
    "plain-bound": "ONNX Runtime, IOBinding on the device",
    "plain-graph": "ONNX Runtime, IOBinding, CUDA graph",
    "ours": "ortopt, arrays in and out",
    "ours-bound": "ortopt, IOBinding on the device",
    "ours-graph": "ortopt, arrays in and out, CUDA graphs",
    "ours-graph-bound": "ortopt, IOBinding on the device, CUDA graphs",
}
"""The ways to run a model; plain ONNX Runtime cannot capture a model that is partly for the CPU."""

_RATIOS: Final = {
    "ours": "plain",
    "ours-graph": "plain",
    "ours-bound": "plain-bound",
    "ours-graph-bound": "plain-graph",
}
_NEAR: Final = 2e-2
_SECONDS: Final = 1.0

Feeds = dict[str, np.ndarray[Any, Any]]


def main() -> None:
    """Measure everything, print a table for each model, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often every way has its turn")
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="how long each measures")
    parser.add_argument("--models", default="", help="names by commas (default all)")
    parser.add_argument("--provider", choices=("cuda", "cpu"), default="cuda", help="cpu is a dry run")
    parser.add_argument("--json", type=Path, default=Path("bench-out/cuda.json"), help="write the figures to this file")
    given = parser.parse_args()
    if given.provider == "cuda":
        from ortopt.analysis.providers import usable

        works, reason = usable(CUDA)
        if not works:
            raise SystemExit(f"CUDA does not work here: {reason} (--provider cpu is a dry run)")
    facts: dict[str, Any] = {
        "machine": {**machine(), "gpu": gpu()},
        "versions": {name: _version(name) for name in ("ortopt", "onnxruntime-gpu", "onnx")},
        "provider": given.provider,
        "rounds": given.rounds,
        "models": {},
    }
    print(headline(facts))
    names = given.models.split(",") if given.models else list(models())
    with tempfile.TemporaryDirectory(prefix="ortopt-bench-") as folder:
        for name in names:
            path = Path(folder, f"{name}.onnx")
            model, feeds = models()[name]()
            onnx.save(model, path)
            np.savez(path.with_suffix(".npz"), **feeds)  # type: ignore[arg-type]  # allow_pickle is no name of ours
            rounds = _measure(path, given.provider, given.rounds, given.seconds)
            facts["models"][name] = rounds
            print(f"\n{name}\n\n{table(rounds)}")
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def headline(facts: Mapping[str, Any]) -> str:
    """One line that names the machine."""
    where = facts["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    dry = "" if facts["provider"] == "cuda" else " A DRY RUN ON THE CPU: no figure of CUDA."
    return (
        f"{where['gpu']}; {where['cpu']}, {where['cores']} cores, {where['system']}, Python {where['python']},"
        f" load {where['load']}. {versions}. Medians of {facts['rounds']} rounds.{dry}"
    )


def table(rounds: list[dict[str, dict[str, float]]]) -> str:
    """What the ways take, and how much faster than plain ONNX Runtime they are, as Markdown."""
    rows = []
    for way, words in WAYS.items():
        if way not in rounds[0]:
            continue
        low, middle, high = quartiles([one[way]["us"] for one in rounds])
        first = quartiles([one[way]["first"] for one in rounds])[1]
        row = [words, number(middle), f"{number(low)} - {number(high)}", number(first)]
        base = next((base for base in (_RATIOS.get(way), "plain-bound", "plain") if base in rounds[0]), None)
        if way in _RATIOS and base is not None:
            gains = speedups([one[base]["us"] for one in rounds], [one[way]["us"] for one in rounds])
            row.append(f"{gains[1]:.2f} ({gains[0]:.2f} - {gains[2]:.2f}) of {base}")
        rows.append([*row, "-"] if len(row) < 5 else row)
    return markdown(["way", "us a call", "quartiles", "s to the first result", "speed"], rows)


def gpu() -> str:
    """The device and its driver, as nvidia-smi names them."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "no GPU"
    command = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return "; ".join(line.strip() for line in done.stdout.splitlines()) or "no GPU"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "of this checkout" if name == "ortopt" else "-"


def _measure(path: Path, provider: str, rounds: int, seconds: float) -> list[dict[str, dict[str, float]]]:
    """What every way takes, by rounds."""
    _child("expect", path, provider, seconds)
    ways = [way for way in WAYS if way != "plain-graph" or not path.stem.startswith("mixed")]
    found = []
    for i in range(rounds):
        order = ways[i % len(ways) :] + ways[: i % len(ways)]
        by_way = {way: _child(way, path, provider, seconds) for way in order}
        found.append({way: by_way[way] for way in ways})
    return found


def _child(way: str, path: Path, provider: str, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.cuda", "child", way, str(path), provider, str(seconds)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{way} of {path.stem} ended with {done.returncode}:\n{done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


# Models


def models() -> dict[str, Callable[[], tuple[onnx.ModelProto, Feeds]]]:
    """What is measured, by name."""
    return {
        "decode-2x256": lambda: decode_step(layers=2, width=256, heads=4, length=64),
        "decode-6x512": lambda: decode_step(layers=6, width=512, heads=8, length=128),
        "decode-12x768": lambda: decode_step(layers=12, width=768, heads=12, length=256),
        "mixed-4x512": lambda: mixed(blocks=4, width=512),
    }


def decode_step(*, layers: int, width: int, heads: int, length: int) -> tuple[onnx.ModelProto, Feeds]:
    """One step of a decoder-only transformer: a token and the cache in, logits and what the cache grows by out.

    Args:
        layers: How many layers.
        width: Of the hidden state.
        heads: Of the attention.
        length: Tokens in the cache.

    Returns:
        The model, opset 17, all shapes fixed, and arguments for it.
    """
    generator = np.random.default_rng(0)
    size, vocabulary = width // heads, 1000
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    info = make.make_tensor_value_info
    inputs = [info("token", onnx.TensorProto.INT64, [1, 1])]
    outputs = [info("logits", onnx.TensorProto.FLOAT, [1, 1, vocabulary])]
    feeds: Feeds = {"token": np.array([[7]])}

    def weight(name: str, *dims: int, scale: float | None = None) -> str:
        array = generator.standard_normal(dims) * (scale if scale is not None else dims[0] ** -0.5)
        weights.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def constant(name: str, values: list[int] | float) -> str:
        array = np.array(values, np.float32 if isinstance(values, float) else np.int64)
        weights.append(onnx.numpy_helper.from_array(array, name))
        return name

    def add(op: str, operands: list[str], name: str, **attributes: Any) -> str:
        nodes.append(make.make_node(op, operands, [name], name=name, **attributes))
        return name

    def normal(value: str, name: str) -> str:
        scale = constant_vector(f"{name}_scale", 1.0)
        return add("LayerNormalization", [value, scale, constant_vector(f"{name}_bias", 0.0)], name, axis=-1)

    def constant_vector(name: str, value: float) -> str:
        weights.append(onnx.numpy_helper.from_array(np.full(width, value, np.float32), name))
        return name

    split = constant("by_head", [1, 1, heads, size])
    joined = constant("joined", [1, 1, width])
    root = constant("root", float(size) ** -0.5)
    half, one, root_2 = constant("half", 0.5), constant("one", 1.0), constant("root_2", 2.0**0.5)
    state = add("Gather", [weight("embedding", vocabulary, width, scale=1.0), "token"], "embedded")
    for i in range(layers):
        before = normal(state, f"norm_a{i}")
        parts = {}
        for part in "qkv":
            flat = add("MatMul", [before, weight(f"w{part}{i}", width, width)], f"{part}{i}")
            shaped = add("Reshape", [flat, split], f"{part}{i}_heads")
            parts[part] = add("Transpose", [shaped], f"{part}{i}_first", perm=[0, 2, 1, 3])
        for part in "kv":
            past, present = f"past_{part}{i}", f"new_{part}{i}"
            inputs.append(info(past, onnx.TensorProto.FLOAT, [1, heads, length, size]))
            feeds[past] = generator.standard_normal((1, heads, length, size)).astype(np.float32)
            outputs.append(info(present, onnx.TensorProto.FLOAT, [1, heads, 1, size]))
            add("Identity", [parts[part]], present)
            parts[part] = add("Concat", [past, parts[part]], f"all_{part}{i}", axis=2)
        keys = add("Transpose", [parts["k"]], f"keys{i}", perm=[0, 1, 3, 2])
        scores = add("Mul", [add("MatMul", [parts["q"], keys], f"scores{i}"), root], f"scaled{i}")
        mixed_in = add("MatMul", [add("Softmax", [scores], f"share{i}", axis=-1), parts["v"]], f"mixed{i}")
        back = add("Transpose", [mixed_in], f"back{i}", perm=[0, 2, 1, 3])
        out = add("MatMul", [add("Reshape", [back, joined], f"flat{i}"), weight(f"wo{i}", width, width)], f"out{i}")
        state = add("Add", [state, out], f"state_a{i}")
        wide = add("MatMul", [normal(state, f"norm_b{i}"), weight(f"up{i}", width, 4 * width)], f"wide{i}")
        error = add("Erf", [add("Div", [wide, root_2], f"over{i}")], f"erf{i}")
        gated = add("Mul", [wide, add("Add", [error, one], f"shift{i}")], f"gated{i}")
        active = add("Mul", [gated, half], f"active{i}")
        state = add(
            "Add", [state, add("MatMul", [active, weight(f"down{i}", 4 * width, width)], f"low{i}")], f"state{i}"
        )
    add("MatMul", [normal(state, "last"), weight("head", width, vocabulary)], "logits")
    graph = make.make_graph(nodes, "decode", inputs, outputs, weights)
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=10), feeds


def mixed(*, blocks: int, width: int) -> tuple[onnx.ModelProto, Feeds]:
    """Blocks for CUDA with an op between them that only the CPU has.

    Args:
        blocks: How many blocks.
        width: Of the hidden state.
    """
    generator = np.random.default_rng(0)
    nodes, weights = [], []
    state = "x"
    for i in range(blocks):
        for j in range(3):
            array = (generator.standard_normal((width, width)) * width**-0.5).astype(np.float32)
            weights.append(onnx.numpy_helper.from_array(array, f"w{i}_{j}"))
            nodes.append(make.make_node("MatMul", [state, f"w{i}_{j}"], [f"m{i}_{j}"]))
            nodes.append(make.make_node("Tanh", [f"m{i}_{j}"], [f"t{i}_{j}"]))
            state = f"t{i}_{j}"
        if i < blocks - 1:
            nodes.append(make.make_node("Asinh", [state], [f"c{i}"]))
            state = f"c{i}"
    nodes.append(make.make_node("Identity", [state], ["y"]))
    info = make.make_tensor_value_info
    graph = make.make_graph(
        nodes,
        "mixed",
        [info("x", onnx.TensorProto.FLOAT, [16, width])],
        [info("y", onnx.TensorProto.FLOAT, [16, width])],
        weights,
    )
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=10)
    return model, {"x": generator.standard_normal((16, width)).astype(np.float32)}


# Children


def child(way: str, path: Path, provider: str, seconds: float) -> dict[str, float]:
    """Measure one way in this process.

    Returns:
        ``us``: microseconds of a call, the median; ``first``: seconds from the constructor to the first result.
    """
    with np.load(path.with_suffix(".npz")) as stored:
        feeds = dict(stored)
    start = time.perf_counter()
    call, results = _prepared(way, path, provider, feeds)
    call()
    first = time.perf_counter() - start
    answers = path.with_suffix(".expected.npz")
    if way == "expect":
        np.savez(answers, *results())
        return {"us": 0.0, "first": first}
    with np.load(answers) as stored:
        for expected, got in zip(stored.values(), results(), strict=True):
            np.testing.assert_allclose(got, expected, rtol=_NEAR, atol=_NEAR)
    for _ in range(20):
        call()
    samples: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples) < 20:
        begun = time.perf_counter()
        call()
        samples.append(time.perf_counter() - begun)
    return {"us": quartiles(samples)[1] * 1e6, "first": first}


def _prepared(
    way: str, path: Path, provider: str, feeds: Feeds
) -> tuple[Callable[[], object], Callable[[], list[Any]]]:
    """What is called and measured, and what gives the results of a call as arrays."""
    import onnxruntime

    import ortopt

    graphs = "graph" in way
    # float32 in full, so that results can be compared; memory on the device that nobody else gets
    own: dict[str, str] = {"use_tf32": "0"} if provider == "cuda" else {}
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    name = CUDA if provider == "cuda" else CPU
    chosen: list[Any] = [(name, own)] if name == CPU else [(name, own), CPU]
    session: Any
    if way.startswith("ours"):
        more: dict[str, Any] = {"specialize_after": 1, "cuda_graphs": True} if graphs else {}
        session = ortopt.InferenceSession(path, options, chosen, **more)
    else:
        if graphs and provider == "cuda":
            own["enable_cuda_graph"] = "1"
        session = onnxruntime.InferenceSession(path, options, chosen)
    if "bound" not in way and way != "plain-graph":
        return lambda: session.run(None, feeds), lambda: list(session.run(None, feeds))
    return _bound(session, feeds, provider, fixed=way == "plain-graph")


def _bound(
    session: Any, feeds: Feeds, provider: str, *, fixed: bool
) -> tuple[Callable[[], object], Callable[[], list[Any]]]:
    """A call with arguments and results in the device's memory; ``fixed``: results at addresses that stay."""
    import onnxruntime

    binding = session.io_binding()
    kept = []
    for name, array in feeds.items():
        kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(array, provider, 0))
        binding.bind_ortvalue_input(name, kept[-1])
    for one in session.get_outputs():
        if fixed:
            zeros = np.zeros([dim if isinstance(dim, int) else 1 for dim in one.shape], np.float32)
            kept.append(onnxruntime.OrtValue.ortvalue_from_numpy(zeros, provider, 0))
            binding.bind_ortvalue_output(one.name, kept[-1])
        else:
            binding.bind_output(one.name, provider, 0)

    def call() -> object:
        session.run_with_iobinding(binding)
        return kept

    return call, lambda: list(binding.copy_outputs_to_cpu())


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(child(sys.argv[2], Path(sys.argv[3]), sys.argv[4], float(sys.argv[5]))))
    else:
        main()
