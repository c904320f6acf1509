"""The arithmetic of `benchmarks.speed`, its floors and its tables; nothing here asserts a time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks import graphs
from benchmarks.process import ROOT
from benchmarks.speed import __main__ as command
from benchmarks.speed import floor, measured, results, tables, turns
from benchmarks.speed.results import FLOOR, ORIGINAL, OTHER_FLOOR, REACHABLE, WRONG, Quartiles, Result, Timing
from ortopt import zoo
from ortopt.verification.input_sets import store_inputs

HEADER = '<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>\n'
CONVS = """main (float[1,2,4,4] x) => (float[1,3] y)
<float[2,2,1,1] v = {1, 2, 3, 4}, float[2,2,1,1] w = {1, 0, 0, 1}, float[2,3] m = {1, 2, 3, 4, 5, 6}> {
  a = Conv (x, v)
  b = Relu (a)
  c = Conv (b, w)
  d = Add (c, b)
  e = GlobalAveragePool (d)
  f = Flatten (e)
  g = MatMul (f, m)
  y = Sigmoid (g)
}"""


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(HEADER + text)


def floor_of(text: str, feeds: dict[str, Any], *kept: Any) -> floor.Floor:
    """The floor of a model that has one."""
    made = floor.floor(parsed(text), feeds, *kept)
    assert made is not None
    return made


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    import onnxruntime

    return list(onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds))


def test_the_floor_has_the_heavy_nodes_alone_one_after_the_other() -> None:
    x = np.arange(32, dtype=np.float32).reshape(1, 2, 4, 4)
    made = floor_of(CONVS, {"x": x})
    assert [(node.op_type, list(node.input), list(node.output)) for node in made.model.graph.node] == [
        ("Conv", ["x", "v"], ["a"]),
        ("Conv", ["a", "w"], ["c"]),  # a Relu between them is folded into nothing
        ("MatMul", ["f", "m"], ["g"]),  # another shape: it is fed
    ]
    assert {value.name for value in made.model.graph.output} == {"c", "g"}
    onnx.checker.check_model(made.model, full_check=True)
    _, product = run(made.model, made.feeds)
    np.testing.assert_allclose(1 / (1 + np.exp(-product)), run(parsed(CONVS), {"x": x})[0], rtol=1e-6)


def test_an_input_that_nothing_reads_is_not_asked_for() -> None:
    model = parsed(CONVS)
    model.graph.input.append(onnx.helper.make_tensor_value_info("folded", onnx.TensorProto.INT64, [1]))
    made = floor.floor(model, {"x": np.ones((1, 2, 4, 4), np.float32)})
    assert made is not None
    assert set(made.feeds) == {"x", "f"}


def test_what_was_fused_into_a_convolution_is_not_in_the_floor() -> None:
    text = """main (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1, 2, 3, 4}> {
      y = com.microsoft.FusedConv <activation = "Relu", kernel_shape = [1, 1]> (x, w, , x)
    }"""
    made = floor_of(text, {"x": np.ones((1, 2, 4, 4), np.float32)})
    (node,) = made.model.graph.node
    assert (node.domain, node.op_type, list(node.input)) == ("", "Conv", ["x", "w", ""])
    assert [attribute.name for attribute in node.attribute] == ["kernel_shape"]


def test_weights_that_are_computed_of_constants_stay_weights() -> None:
    text = """main (float[1,2] x) => (float[1,2] y) <uint8[2,2] w = {1, 2, 3, 4}, float s = {0.5}> {
      d = DequantizeLinear (w, s)
      y = MatMul (x, d)
    }"""
    made = floor_of(text, {"x": np.ones((1, 2), np.float32)})
    assert [tensor.name for tensor in made.model.graph.initializer] == ["d"]
    assert list(made.feeds) == ["x"]


def test_floors_that_would_compute_with_denormal_numbers_are_fed() -> None:
    text = """main (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,1,1] v = {1e-30}, float[1,1,1,1] w = {1e-9},
      float[1] k = {1e30}> {
      a = Conv (x, v)
      b = Mul (a, k)
      y = Conv (b, w)
    }"""
    made = floor_of(text, {"x": np.ones((1, 1, 4, 4), np.float32)})
    assert list(made.feeds) == ["x", "b"]


def test_what_a_heavy_node_gives_is_fed_under_a_name_of_its_own() -> None:
    text = """main (float[1,1,4,4] x) => (float[1,1,4,4] y) <float[1,1,1,1] u = {1}, float[1,1,1,1] v = {1e-30},
      float[1,1,1,1] w = {1e-9}, float[1] k = {1e30}> {
      a = Conv (x, u)
      b = Conv (a, v)
      c = Mul (b, k)
      y = Conv (c, w)
    }"""
    made = floor_of(text, {"x": np.ones((1, 1, 4, 4), np.float32)})
    assert list(made.feeds) == ["x", "a/fed", "c"]
    assert len(run(made.model, made.feeds)) == len(made.model.graph.output)


def test_what_is_reachable_has_activations_and_normalizations_as_well() -> None:
    text = """main (float[1,2,4] x) => (float[1,2,4] y)
    <float[4,4] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}, float[4] b = {1, 2, 3, 4}, int64[1] most = {9}> {
      a = MatMul (x, v)
      c = Add (a, b)
      d = com.microsoft.Gelu (c)
      e = Add (d, x)
      f = LayerNormalization <axis = -1> (e, b)
      s = Shape (f)
      t = Clip (s, , most)
      g = Expand (f, t)
      y = MatMul (g, v)
    }"""
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(1, 2, 4)}
    made = floor_of(text, feeds, floor.NEEDED)
    assert [(node.op_type, list(node.input)[:1]) for node in made.model.graph.node] == [
        ("MatMul", ["x"]),
        ("Gelu", ["a"]),
        ("LayerNormalization", ["d"]),  # neither the sums nor the Clip of a shape
        ("MatMul", ["f"]),
    ]
    run(made.model, made.feeds)


@pytest.mark.parametrize(("kept", "attributes"), [(floor.HEAVY, []), (floor.NEEDED, ["activation"])])
def test_a_fused_activation_is_reachable_only(kept: frozenset[str], attributes: list[str]) -> None:
    text = """main (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] w = {1, 2, 3, 4}> {
      y = com.microsoft.FusedConv <activation = "Relu"> (x, w, , x)
    }"""
    made = floor_of(text, {"x": np.ones((1, 2, 4, 4), np.float32)}, kept)
    (node,) = made.model.graph.node
    assert [attribute.name for attribute in node.attribute] == attributes
    assert "x" not in list(node.input)[1:]
    run(made.model, made.feeds)


@pytest.mark.parametrize(
    "text",
    [
        "main (float[2] x) => (float[2] y) { y = Relu (x) }",
        """main (bool c, float[2,2] x) => (float[2,2] y) {
          z = MatMul (x, x)
          y = If (c) <then_branch = t () => (float[2,2] a) { a = MatMul (z, x) },
                      else_branch = e () => (float[2,2] b) { b = Relu (z) }>
        }""",
    ],
    ids=["nothing is heavy", "a body"],
)
def test_models_without_a_floor(text: str) -> None:
    assert floor.floor(parsed(text), {"c": np.array(True), "x": np.ones((2, 2), np.float32)}) is None


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    """The same, another one and a broken one, and the folder of their inputs."""
    texts = {
        "original": "main (float[2] x) => (float[2] y) { y = Add (x, x) }",
        "same": "main (float[2] x) => (float[2] y) <float[1] k = {2}> { y = Mul (x, k) }",
        "other": "main (float[2] x) => (float[2] y) { y = Mul (x, x) }",
    }
    paths = {name: tmp_path / f"{name}.onnx" for name in texts}
    for name, text in texts.items():
        onnx.save(parsed(text), paths[name])
    paths["broken"] = tmp_path / "broken.onnx"
    paths["broken"].write_bytes(b"nonsense")
    store_inputs({"x": np.array([1.0, 4.0], np.float32)}, tmp_path / "inputs")
    return {name: str(path) for name, path in paths.items()} | {"inputs": str(tmp_path / "inputs")}


@pytest.mark.parametrize("threads", [1, 2])
def test_versions_are_timed_in_turns_and_compared(models: dict[str, str], threads: int) -> None:
    versions: list[turns.Version] = [
        {"name": name, "model": models[name], "inputs": models["inputs"], "same": True}
        for name in ("original", "same", "other", "broken")
    ]
    order = {"versions": versions, "threads": threads, "seconds": 0.0, "turns": 2}
    command = [sys.executable, "-m", "benchmarks.speed.turns"]  # several threads are those of all sessions in a process
    done = subprocess.run(command, input=json.dumps(order), capture_output=True, text=True, check=True, cwd=ROOT)
    answers = json.loads(done.stdout)
    assert answers["broken"]["outcome"].startswith("does not run: ")
    assert answers["broken"]["cpu"] == []
    assert {name: answer["error"] for name, answer in answers.items()} == {
        "original": 0.0, "same": 0.0, "other": 1.0, "broken": 0.0,
    }  # fmt: skip
    for name in ("original", "same", "other"):
        assert len(answers[name]["cpu"]) == len(answers[name]["wall"]) == 2
        assert all(seconds > 0 for seconds in answers[name]["wall"])


def test_what_the_original_itself_may_choose_otherwise_is_no_difference(tmp_path: Path) -> None:
    """Of two numbers that are equal but for rounding, a TopK takes the one or the other: what follows is another."""
    highest = {"original": 40, "right": 20, "wrong": 40}
    for name, place in highest.items():
        model = parsed("""main (float[64] x) => (float[1] y) <int64[1] k = {1}> {
            s = Add (x, ones) best, place = TopK (s, k) y = Gather (far, place) }""")
        ones, far = np.ones(64, np.float32), np.arange(64, dtype=np.float32)
        ones[place] += np.spacing(np.float32(1))
        far *= 9 if name == "wrong" else 1
        arrays = {"ones": ones, "far": far}
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
        onnx.save(model, tmp_path / f"{name}.onnx")
    store_inputs({"x": np.full(64, 0.3, np.float32)}, tmp_path / "inputs")
    versions: list[turns.Version] = [
        {"name": name, "model": str(tmp_path / f"{name}.onnx"), "inputs": str(tmp_path / "inputs"), "same": True}
        for name in highest
    ]
    answers = turns.times({"versions": versions, "threads": 1, "seconds": 0.0, "turns": 2})
    assert {name: answer["error"] <= WRONG for name, answer in answers.items()} == {
        "original": True, "right": True, "wrong": False,
    }  # fmt: skip


def test_differences() -> None:
    nan, inf = float("nan"), float("inf")
    x = np.array([1.0, -4.0, nan, inf])
    assert turns.difference([x], [x]) == 0
    assert turns.difference([x], [np.array([1.0, -3.0, nan, inf])]) == 0.25
    assert turns.difference([x], [np.array([1.0, -4.0, 0.0, inf])]) == inf
    assert turns.difference([x], [x[:2]]) == inf
    assert turns.difference([np.array([3])], [np.array([4])]) == 0  # where it is an index, near is no measure
    assert turns.difference([np.zeros(2)], [np.array([0.0, 0.5])]) == 0.5
    small = np.array([6e-8], np.float32)
    assert turns.difference([small], [2 * small]) == 0  # a Sigmoid of 16 and one of 17 differ by as much
    assert turns.difference([small], [4 * small]) > 1


def answer(cpu: list[float], wall: list[float], outcome: str = "ok", error: float = 0.0) -> turns.Answer:
    return {"outcome": outcome, "error": error, "cpu": cpu, "wall": wall}


def test_ratios_are_taken_turn_by_turn_over_all_processes() -> None:
    first = {ORIGINAL: answer([1.0, 2.0], [4.0, 4.0]), "ours": answer([0.5, 2.0], [1.0, 2.0], error=0.01)}
    second = {ORIGINAL: answer([3.0], [4.0]), "ours": answer([1.0], [1.0])}
    original, ours = results.timings([first, second], "seq 1", 1)
    assert original.cpu == (1, 1, 1)
    assert ours.cpu == (1.5, 2.0, 2.5)
    assert ours.wall.median == 4.0
    assert (ours.seconds, ours.error, ours.speed) == (1.0, 0.01, 2.0)
    (_, ours) = results.timings([first, second], "seq 1", 2)
    assert ours.speed == 4.0  # with more threads the wall's clock counts


def test_a_version_that_does_not_run_has_no_speed() -> None:
    rows = results.timings([{ORIGINAL: answer([1.0], [1.0]), "theirs": answer([], [], "does not run: no")}], "", 1)
    assert [row.outcome for row in rows] == ["ok", "does not run: no"]
    rows = results.timings([{ORIGINAL: answer([], [], "does not run: no"), "theirs": answer([1.0], [1.0])}], "", 1)
    assert not any(row.counts for row in rows)


def timing(tool: str, speed: float, sizes: str = "seq 1", **more: Any) -> Timing:
    same = Quartiles(speed, speed, speed)
    return Timing(tool, sizes, 1, "ok", seconds=0.002, cpu=same, wall=same, **more)


def test_of_two_floors_the_faster_counts() -> None:
    rows = results.one_floor([timing("ours", 1.1), timing(FLOOR, 1.2), timing(OTHER_FLOOR, 1.4)])
    assert [(row.tool, row.speed) for row in rows] == [("ours", 1.1), (FLOOR, 1.4)]
    assert [row.tool for row in results.one_floor([timing("ours", 1.1)])] == ["ours"]


@pytest.fixture
def two() -> list[Result]:
    first = Result(
        "a", "k", "0a1b" * 16, {"ortopt": "ok", "theirs": "exit 1: no"}, {"ortopt": 0.5}, {ORIGINAL: (9, 2, 1)}
    )
    first.timings = [
        *(timing(ORIGINAL, 1.0), timing("ortopt", 2.0), timing("theirs", 1.0), timing(FLOOR, 4.0)),
        *(timing(tool, 1.0, "seq 9") for tool in (ORIGINAL, "theirs")),
        *(timing("ortopt", 0.5, "seq 9"), timing(FLOOR, 1.0, "seq 9")),
    ]
    second = Result("b", "k", loaded={ORIGINAL: (3, 0, 0), "ortopt": (2, 0, 0)})
    second.timings = [timing(ORIGINAL, 1.0, "as they are"), timing("ortopt", 4.0, "as they are")]
    second.timings.append(timing("theirs", 9.0, "as they are", error=0.5))
    return [first, second]


def test_means_and_ways(two: list[Result]) -> None:
    assert tables.mean(two, "ortopt", 1) == pytest.approx(2.0)  # of a: 1, of b: 4
    assert tables.mean(two, "theirs", 1) == pytest.approx(1.0)  # what is wrong is not fast
    assert tables.mean(two, "ortopt", 2) is None
    assert two[0].speed(FLOOR, 1) == pytest.approx(2.0)
    assert tables.way(two[0], "ortopt", 1) == pytest.approx(0.0)
    assert tables.way(two[1], "ortopt", 1) is None
    assert tables.whole_way(two, "ortopt", 1) == pytest.approx(0.0)


def test_tables(two: list[Result]) -> None:
    assert tables.speeds(two, 1).splitlines()[2:] == [
        "| a | seq 1 | 2.00 | 2.00 (2.00 to 2.00) | 1.00 (1.00 to 1.00) | 4.00 (4.00 to 4.00) | 50 % |",
        "| a | seq 9 | 2.00 | 0.50 (0.50 to 0.50) | 1.00 (1.00 to 1.00) | 1.00 (1.00 to 1.00) | - |",
        "| b | as they are | 2.00 | 4.00 (4.00 to 4.00) | wrong | - | - |",
        "| **geometric mean** |  |  | 2.00 | 1.00 | 2.00 | 0 % |",
        "| **least** |  |  | 0.500 | 1.00 | 1.00 |  |",
    ]
    two[0].timings.append(timing(REACHABLE, 3.0))
    assert (
        tables.speeds(two, 1)
        .splitlines()[0]
        .endswith("| floor | reachable | way to the floor | way to what is reachable |")
    )
    assert tables.speeds(two, 1).splitlines()[2].endswith("| 4.00 (4.00 to 4.00) | 3.00 (3.00 to 3.00) | 50 % | 63 % |")
    assert tables.behind(two, 1).endswith("\n\n- a (seq 9): 0.50; original 1.00\n")
    assert tables.behind(two[1:], 1).startswith("Nowhere slower")
    assert "- a, theirs: exit 1: no\n" in tables.failures(two)
    assert "- b, theirs: outputs are off by 0.5 of the largest number\n" in tables.failures(two)
    assert "| a | 9 | 2 | 1 | - | - | - |" in tables.loaded(two)
    assert "### 1 thread, CPU time of the thread" in tables.page(two, [1])
    assert tables.files(two).splitlines()[2] == f"| a | `{'0a1b' * 8}` |"


def test_results_are_read_as_they_were_written(two: list[Result], tmp_path: Path) -> None:
    two[0].timings.append(Timing("broken", "seq 1", 1, "ok", error=math.inf))
    two[0].write(tmp_path / "a.json")
    assert not {"NaN", "Infinity"} & set((tmp_path / "a.json").read_text().split())
    known = results.read(tmp_path / "a.json")
    assert known.timings[:-1] == two[0].timings[:-1]
    assert math.isnan(known.timings[-1].seconds)
    assert known.timings[-1].error == math.inf
    assert (known.loaded, known.tools, known.key) == (two[0].loaded, two[0].tools, "k")


def test_a_run_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: dict[str, str]) -> None:
    asked: list[str] = []

    def fake(name: str, source: Path, plan: measured.Plan, _folder: Path) -> Result:
        asked.append(name)
        return Result(name, plan.key(source), timings=[timing(ORIGINAL, 1.0), timing("ortopt", 2.0)])

    monkeypatch.setattr(command, "measured", fake)

    def go(*more: str) -> list[str]:
        asked.clear()
        names = ["--models", f"{models['original']},{models['same']}", "--out", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", ["speed", *names, *more])
        command.main()
        return list(asked)

    assert go("--seconds", "-1") == []
    assert go() == ["original", "same"]
    assert go() == []
    onnx.save(parsed("main (float[2] x) => (float[2] y) { y = Neg (x) }"), models["same"])
    assert go("--keep") == []
    assert go() == ["same"]
    assert go("--threads", "1") == ["original", "same"]
    data = json.loads((tmp_path / "out" / "speed.json").read_text())
    assert [one["model"] for one in data["results"]] == ["original", "same"]
    assert "| original | seq 1 |" in (tmp_path / "out" / "speed.md").read_text()


def test_models_are_members_of_the_zoo_files_or_folders(models: dict[str, str]) -> None:
    folder = Path(models["original"]).parent
    assert dict(command.models(f"bert_small__ts17,{models['same']}")) == {
        "bert_small__ts17": None,
        "same": Path(models["same"]),
    }
    assert list(dict(command.models(str(folder)))) == ["broken", "original", "other", "same"]
    assert list(dict(command.models(""))) == list(zoo.names())


def test_reorders_are_counted(tmp_path: Path) -> None:
    text = """main (float[1,16,4,4] x) => (float[1,16,4,4] y) {
      z = com.microsoft.nchwc.ReorderInput (x)
      y = com.microsoft.nchwc.ReorderOutput <channels = 16> (z)
    }"""
    header = HEADER.replace("]>", ', "com.microsoft.nchwc" : 1]>')
    onnx.save(onnx.parser.parse_model(header + text), tmp_path / "model.onnx")
    assert graphs.count(tmp_path / "model.onnx") == graphs.Nodes(total=2, fused=2, reorders=2)
