"""``ortopt groups`` shows what a grouped model holds, and what -O4 would make of a plain one."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from ortopt.cli.group import commands
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.save import save
from ortopt.testing import parse

TEXT = """main (float[N,4] x, float[4,4] w) => (float[N,4] y)
    { t = MatMul (x, w) u = Neg (t) v = MatMul (u, w) y = Relu (v) }"""


@pytest.fixture
def grouped(tmp_path: Path) -> Path:
    model = parse(TEXT)
    group(model, PartitionOptions(deny=("Neg",)))
    path = tmp_path / "grouped.onnx"
    save(model, path)
    return path


def groups(*arguments: object) -> Result:
    return CliRunner().invoke(commands, ["groups", *map(str, arguments)])


def test_a_table_for_people(grouped: Path) -> None:
    said = groups(grouped).output
    assert "2 groups, 1 node outside" in said
    assert "group_1" in said
    assert "critical path: inputs → group_0 → Neg" in said
    rows = [line.split() for line in said.splitlines()]
    assert rows.index(["node", "outside", "op"]) + 1 == rows.index(["Neg", "Neg"])
    assert ["inputs", "group_0", "w", "FLOAT", "[4,", "4]", "64", "B"] in rows


def test_long_tables_say_how_much_is_left_out(tmp_path: Path) -> None:
    body = " ".join(f"a{i} = MatMul (n{i}, w) n{i + 1} = Neg (a{i})" for i in range(42))
    model = parse(f"main (float[4,4] n0, float[4,4] w) => (float[4,4] n42) {{ {body} }}")
    group(model, PartitionOptions(deny=("Neg",)))
    save(model, tmp_path / "long.onnx")
    said = groups(tmp_path / "long.onnx").output
    assert "42 groups, 42 nodes outside" in said
    assert said.count("and 2 more (--json shows all)") == 2
    assert "and 87 more (--json shows all)" in said
    assert groups(tmp_path / "long.onnx", "--dot").output.endswith("\n}\n")


def test_an_unknown_rank_is_said(tmp_path: Path) -> None:
    model = parse("main (float[4,4] x, int64[K] s) => (float[] y) { t = Reshape (x, s) n = Neg (t) y = Softmax (n) }")
    group(model, PartitionOptions(deny=("Neg",), policy="literal"))
    save(model, tmp_path / "unknown.onnx")
    assert "unknown rank" in groups(tmp_path / "unknown.onnx").output
    (graph,) = json.loads(groups(tmp_path / "unknown.onnx", "--json").output)["graphs"]
    assert [edge["shape"] for edge in graph["edges"] if edge["value"] == "y"] == [None]


def test_a_table_counts_what_computes(tmp_path: Path) -> None:
    model = parse("main (float[N,4] x) => (float[N,4] y) <float two = {2}> { t = Mul (x, two) y = Relu (t) }")
    save(model, tmp_path / "plain.onnx")
    said = groups(tmp_path / "plain.onnx").output
    assert "1 group, no nodes outside" in said
    assert "Constant" not in said
    assert "1 Mul, 1 Relu" in said


def test_a_picture_on_stdout_is_alone_there(grouped: Path) -> None:
    said = groups(grouped, "--draw", "-").stdout
    assert ElementTree.fromstring(said).tag.endswith("svg")


def test_data(grouped: Path) -> None:
    data = json.loads(groups(grouped, "--json").output)
    assert data["schema"] == 1
    (graph,) = data["graphs"]
    vertices = {vertex["name"]: vertex for vertex in graph["vertices"]}
    second = vertices["group_1"]
    assert second["provider"] == "CPUExecutionProvider"
    assert second["ops"] == {"MatMul": 1, "Relu": 1}
    assert (vertices["inputs"]["inputs"], vertices["inputs"]["outputs"]) == ([], ["x", "w"])
    assert (vertices["outputs"]["inputs"], vertices["outputs"]["outputs"]) == (["y"], [])
    assert (second["inputs"], second["outputs"]) == (["u", "w"], ["y"])
    edges = {(edge["from"], edge["to"], edge["value"]): edge for edge in graph["edges"]}
    assert edges["inputs", "group_0", "w"]["bytes"] == 64
    assert edges["inputs", "group_0", "x"]["bytes"] == "16*N"
    assert edges["inputs", "group_0", "x"]["shape"] == ["N", 4]
    assert len(graph["generations"]) == 5
    assert graph["critical_path"][-1] == "outputs"


def test_bytes_of_every_type(tmp_path: Path) -> None:
    """What is no tensor of numbers, and what depends on contents, has no bytes that anybody knows."""
    model = parse(
        """main (seq(float[3]) q, optional(float[5]) o, string[4] s, float[N,M] x, uint4[3] u, bool[0,7] b, float16 h)
        => (float[3] y, float[5] z, string[4] t, int64[] k, uint4[3] v, bool[0,7] c, float16 g, int64[] r)
        <int64 i = {0}> {
            y = SequenceAt (q, i) z = OptionalGetElement (o) t = Identity (s) k = NonZero (x) v = Identity (u)
            c = Not (b) g = Abs (h) n = Neg (k) r = Transpose (n) }""",
        21,
    )
    path = tmp_path / "types.onnx"
    group(model, PartitionOptions(deny=("Neg",), policy="literal"))
    save(model, path)
    (graph,) = json.loads(groups(path, "--json").output)["graphs"]
    found = {edge["value"]: edge["bytes"] for edge in graph["edges"]}
    unknown = dict.fromkeys(["q", "o", "s", "t", "k", "n", "r", "y", "z"])
    assert found == {**unknown, "x": "4*M*N", "u": 2, "v": 2, "b": 0, "c": 0, "h": 2, "g": 2}


def test_a_plain_model_is_shown_as_it_would_be_grouped(tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    save(parse(TEXT), path)
    before = path.read_bytes()
    for policy in ("cost", "literal"):
        (graph,) = json.loads(groups(path, "--json", "--group-policy", policy).output)["graphs"]
        assert [vertex["kind"] for vertex in graph["vertices"]] == ["inputs", "group", "outputs"]
    assert path.read_bytes() == before


def test_pictures(grouped: Path, tmp_path: Path) -> None:
    dot = groups(grouped, "--dot").output
    assert dot.startswith("digraph groups {")
    assert '"group_0" -> "' in dot
    picture = tmp_path / "groups.svg"
    assert groups(grouped, "--draw", picture).exit_code == 0
    root = ElementTree.fromstring(picture.read_text(encoding="utf-8"))
    assert len(root.findall("{http://www.w3.org/2000/svg}rect")) == 5


def test_groups_in_subgraphs_are_shown_with_their_graph(tmp_path: Path) -> None:
    model = parse(
        """main (float[2,2] w, bool go) => (float[2,2] y) {
        y = If <then_branch = a () => (float[2,2] p) { q = MatMul (w, w) p = Neg (q) },
                else_branch = b () => (float[2,2] p) { p = Neg (w) }> (go) }"""
    )
    group(model, PartitionOptions(deny=("Neg",)))
    path = tmp_path / "nested.onnx"
    save(model, path)
    main, nested = json.loads(groups(path, "--json").output)["graphs"]
    assert [vertex["kind"] for vertex in main["vertices"]] == ["inputs", "node", "outputs"]
    assert nested["graph"].endswith("then_branch")
    assert [vertex["kind"] for vertex in nested["vertices"]] == ["inputs", "group", "node", "outputs"]


def test_optimize_writes_groups_as_told(tmp_path: Path) -> None:
    path, out = tmp_path / "plain.onnx", tmp_path / "out.onnx"
    text = """main (float[N] a, float[N] b, float[N] c, float[N] d, float[N] e) => (float[N] y)
        { t = Sub (a, b) u = Sub (t, c) v = Sub (u, d) y = Sub (v, e) }"""
    save(parse(text), path)
    for options, count in (((), 1), (("--group-policy", "literal", "--group-arg-limit", "4"), 4)):
        done = CliRunner().invoke(commands, ["optimize", str(path), "-O4", "-o", str(out), *options])
        assert done.exit_code == 0, done.output
        assert "verified" in done.output
        vertices = json.loads(groups(out, "--json").output)["graphs"][0]["vertices"]
        assert [vertex["kind"] for vertex in vertices].count("group") == count


def test_names_cannot_write_to_the_terminal_or_break_a_picture(tmp_path: Path) -> None:
    model = parse("main (float[2] x) => (float[2] y) { t = Neg (x) y = Celu (t) }")
    model.graph.name = model.graph.inputs[0].name = '\x1b[2J\nx"'
    model.graph[1].name = "\x1b[31mn"
    group(model, PartitionOptions(deny=("Celu",)))
    save(model, tmp_path / "esc.onnx")
    for form in ((), ("--dot",), ("--draw", "-"), ("--json",)):
        done = groups(tmp_path / "esc.onnx", *form)
        assert done.exit_code == 0
        assert "\x1b" not in done.output
    ElementTree.fromstring(groups(tmp_path / "esc.onnx", "--draw", "-").output)
