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
    options = parser.parse_args()
    if options.provider == "cuda":
        from ortopt.analysis.providers import usable

        works, reason = usable(CUDA)
        if not works:
            raise SystemExit(f"CUDA does not work here: {reason} (--provider cpu is a dry run)")
    facts: dict[str, Any] = {
        "machine": {**machine(), "gpu": gpu()},
        "versions": {name: _version(name) for name in ("ortopt", "onnxruntime-gpu", "onnx")},
        "provider": options.provider,
        "rounds": options.rounds,
        "models": {},
    }
    print(headline(facts))
    names = options.models.split(",") if options.models else list(models())
    with tempfile.TemporaryDirectory(prefix="ortopt-bench-") as folder:
        for name in names:
            path = Path(folder, f"{name}.onnx")
            model, feeds = models()[name]()
            onnx.save(model, path)
            np.savez(path.with_suffix(".npz"), **feeds)  # type: ignore[arg-type]  # allow_pickle is no name of ours
            rounds = _measure(path, options.provider, options.rounds, options.seconds)
            facts["models"][name] = rounds
            print(f"\n{name}\n\n{table(rounds)}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


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
    measured = []
    for i in range(rounds):
        order = ways[i % len(ways) :] + ways[: i % len(ways)]
        by_way = {way: _child(way, path, provider, seconds) for way in order}
        measured.append({way: by_way[way] for way in ways})
    return measured


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
    decoder = _Decoder(width, heads, length)
    state = decoder.embedded()
    for i in range(layers):
        state = decoder.attention(state, i)
        state = decoder.feed_forward(state, i)
    return decoder.model(state)


class _Decoder:
    """Writes a decoder-only transformer, with random weights and arguments.

    Args:
        width: Of the hidden state.
        heads: Of the attention.
        length: Tokens in the cache.
    """

    vocabulary = 1000

    def __init__(self, width: int, heads: int, length: int) -> None:
        self._width = width
        self._heads, self._size = heads, width // heads
        self._length = length
        self._generator = np.random.default_rng(0)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs = [make.make_tensor_value_info("token", onnx.TensorProto.INT64, [1, 1])]
        self._outputs = [make.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [1, 1, self.vocabulary])]
        self._feeds: Feeds = {"token": np.array([[7]])}
        self._split = self._constant("by_head", np.array([1, 1, heads, self._size]))
        self._joined = self._constant("joined", np.array([1, 1, width]))
        self._root = self._constant("root", np.float32(float(self._size) ** -0.5))
        self._half = self._constant("half", np.float32(0.5))
        self._one = self._constant("one", np.float32(1.0))
        self._root_2 = self._constant("root_2", np.float32(2.0**0.5))

    def embedded(self) -> str:
        """The token's embedding."""
        return self._add(
            "Gather", [self._weight("embedding", self.vocabulary, self._width, scale=1.0), "token"], "embedded"
        )

    def attention(self, state: str, i: int) -> str:
        """Attention over the cache and the token, added to the hidden state."""
        add, width = self._add, self._width
        before = self._normal(state, f"norm_a{i}")
        parts = {part: self._by_head(before, part, i) for part in "qkv"}
        for part in "kv":
            parts[part] = self._with_past(parts[part], part, i)
        keys = add("Transpose", [parts["k"]], f"keys{i}", perm=[0, 1, 3, 2])
        scores = add("Mul", [add("MatMul", [parts["q"], keys], f"scores{i}"), self._root], f"scaled{i}")
        mixed_in = add("MatMul", [add("Softmax", [scores], f"share{i}", axis=-1), parts["v"]], f"mixed{i}")
        back = add("Transpose", [mixed_in], f"back{i}", perm=[0, 2, 1, 3])
        flat = add("Reshape", [back, self._joined], f"flat{i}")
        out = add("MatMul", [flat, self._weight(f"wo{i}", width, width)], f"out{i}")
        return add("Add", [state, out], f"state_a{i}")

    def feed_forward(self, state: str, i: int) -> str:
        """Two layers with a Gelu between them, added to the hidden state."""
        add, width = self._add, self._width
        before = self._normal(state, f"norm_b{i}")
        wide = add("MatMul", [before, self._weight(f"up{i}", width, 4 * width)], f"wide{i}")
        error = add("Erf", [add("Div", [wide, self._root_2], f"over{i}")], f"erf{i}")
        gated = add("Mul", [wide, add("Add", [error, self._one], f"shift{i}")], f"gated{i}")
        active = add("Mul", [gated, self._half], f"active{i}")
        low = add("MatMul", [active, self._weight(f"down{i}", 4 * width, width)], f"low{i}")
        return add("Add", [state, low], f"state{i}")

    def model(self, state: str) -> tuple[onnx.ModelProto, Feeds]:
        """The model, and arguments for it."""
        normal = self._normal(state, "last")
        self._add("MatMul", [normal, self._weight("head", self._width, self.vocabulary)], "logits")
        graph = make.make_graph(self._nodes, "decode", self._inputs, self._outputs, self._weights)
        return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=10), self._feeds

    def _by_head(self, state: str, part: str, i: int) -> str:
        flat = self._add("MatMul", [state, self._weight(f"w{part}{i}", self._width, self._width)], f"{part}{i}")
        shaped = self._add("Reshape", [flat, self._split], f"{part}{i}_heads")
        return self._add("Transpose", [shaped], f"{part}{i}_first", perm=[0, 2, 1, 3])

    def _with_past(self, value: str, part: str, i: int) -> str:
        """Keys or values after those of the cache; the new ones are an output."""
        past, present = f"past_{part}{i}", f"new_{part}{i}"
        dims, info = (1, self._heads, self._length, self._size), make.make_tensor_value_info
        self._inputs.append(info(past, onnx.TensorProto.FLOAT, dims))
        self._feeds[past] = self._generator.standard_normal(dims).astype(np.float32)
        self._outputs.append(info(present, onnx.TensorProto.FLOAT, [1, self._heads, 1, self._size]))
        self._add("Identity", [value], present)
        return self._add("Concat", [past, value], f"all_{part}{i}", axis=2)

    def _normal(self, value: str, name: str) -> str:
        scale = self._constant(f"{name}_scale", np.full(self._width, 1.0, np.float32))
        bias = self._constant(f"{name}_bias", np.full(self._width, 0.0, np.float32))
        return self._add("LayerNormalization", [value, scale, bias], name, axis=-1)

    def _weight(self, name: str, *dims: int, scale: float | None = None) -> str:
        array = self._generator.standard_normal(dims) * (scale if scale is not None else dims[0] ** -0.5)
        return self._constant(name, array.astype(np.float32))

    def _constant(self, name: str, array: Any) -> str:
        self._weights.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        return name

    def _add(self, op: str, operands: list[str], name: str, **attributes: Any) -> str:
        self._nodes.append(make.make_node(op, operands, [name], name=name, **attributes))
        return name


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
