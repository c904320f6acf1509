"""Broken and hostile files: one line on stderr, exit code 2, nothing left behind; what is only unusual goes through."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.serialization import models

ROOT = Path(__file__).parents[2]
Change = Callable[[onnx.ModelProto], None]

TEXT = """
main (float[N,4] x, bool c) => (float[N,4] y) <float[4,4] w = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}> {
    a = MatMul (x, w)
    b = Relu (a)
    y = If (c) <then_branch = yes () => (float[N,4] p) { p = Neg (b) }, else_branch = no () => (float[N,4] q)
        { q = Add (a, w) }>
}"""


def proto(text: str = TEXT) -> onnx.ModelProto:
    return models.text(text)


def external(model: onnx.ModelProto, **entries: str) -> None:
    tensor = model.graph.initializer[0]
    for field in ("raw_data", "float_data"):
        tensor.ClearField(field)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "models"
    made.mkdir()
    return made


def refused(ortopt: Any, path: Path, *arguments: str) -> str:
    """What is said of a file that must be refused."""
    there = sorted(path.parent.iterdir())
    for command in (("optimize", path, *arguments), ("info", path), ("explain", path, "identity_elimination")):
        done = ortopt(*command, code=2)
        line = str(done.stderr)
        assert done.stdout == ""
        assert line.startswith("ortopt: ")
        assert line.endswith("\n")
        assert line[:-1].isprintable()
        assert len(line) < 900
        assert sorted(path.parent.iterdir()) == there
    return line


@pytest.mark.parametrize(
    ("entries", "because"),
    [
        ({"location": "none.data"}, "No such file"),
        ({"location": "../w.data"}, "outside"),
        ({"location": "sub/../../w.data"}, "outside"),
        ({"location": "/etc/passwd"}, "outside"),
        ({"location": "link.data"}, "outside"),
        ({"location": "up/w.data"}, "outside"),
        ({"location": "short.data"}, "beyond the end"),
        ({"location": "w.data", "offset": "1"}, "beyond the end"),
        ({"location": "w.data", "offset": str(1 << 63)}, "beyond the end"),
        ({"location": "w.data", "offset": "-1"}, "offset"),
        ({"location": "w.data", "length": "8"}, "8 bytes"),
        ({"location": "."}, "regular"),
        ({"location": "/dev/zero"}, "outside"),
        ({"location": "pipe"}, "regular"),
        ({"location": "w.data\0"}, "location"),
        ({}, "location"),
    ],
)
def test_external_data(ortopt: Any, folder: Path, entries: dict[str, str], because: str) -> None:
    for place in (folder.parent, folder):
        (place / "w.data").write_bytes(bytes(64))
    (folder / "short.data").write_bytes(bytes(63))
    (folder / "link.data").symlink_to("../w.data")
    (folder / "up").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe")
    made = proto()
    external(made, **entries)
    (folder / "m.onnx").write_bytes(made.SerializeToString())
    assert because in refused(ortopt, folder / "m.onnx")


@pytest.mark.parametrize(
    "data",
    {
        "empty": b"",
        "a zero": b"\0",
        "text": b"hello, I am no model\n" * 50,
        "a zip file": b"PK\x03\x04" + bytes(range(256)) * 4,
        "json": b'{"ir_version": 8}',
        "random": np.random.default_rng(0).bytes(20_000),
        "a length without end": b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        "groups": b"\x0b" * 5000,
        "a graph in a graph in a graph": b"\x08\x08\x3a\x7f" * 1000,
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_no_model(ortopt: Any, folder: Path, data: tuple[str, bytes]) -> None:
    (folder / "m.onnx").write_bytes(data[1])
    refused(ortopt, folder / "m.onnx")


def test_what_is_no_file(ortopt: Any, folder: Path) -> None:
    refused(ortopt, folder / "none.onnx")
    (folder / "m.onnx").mkdir()
    assert "folder" in ortopt("optimize", folder / "m.onnx", code=1).stderr
    assert len(ortopt("info", folder / "m.onnx", code=2).stderr.splitlines()) == 1
    os.mkfifo(folder / "pipe.onnx")
    refused(ortopt, folder / "pipe.onnx")
    (folder / "loop.onnx").symlink_to("loop.onnx")
    refused(ortopt, folder / "loop.onnx")


def test_cut_anywhere(ortopt: Any, folder: Path) -> None:
    """Where a field ends protobuf sees no cut; nowhere is there anything but a model or one line."""
    data = models.weights().SerializeToString()
    path, out = folder / "m.onnx", folder / "out.onnx"
    path.write_bytes(data)
    ends = {0, 1, 2, len(data) - 1, *(int(cut) for cut in np.linspace(3, len(data) - 1, 60))}
    for cut in sorted(ends):
        path.write_bytes(data[:cut])
        refused(ortopt, path, "-o", str(out))


def test_damaged_anywhere(ortopt: Any, folder: Path) -> None:
    """Whatever the bytes say, a run ends with a model that loads, or with one line."""
    import click.testing

    from ortopt.cli.group import commands

    data = proto().SerializeToString()
    path, out = folder / "m.onnx", folder / "out.onnx"
    random = np.random.default_rng(7)
    codes = []
    for _ in range(150):
        damaged = bytearray(data)
        for position in random.integers(0, len(data), random.integers(1, 4)):
            damaged[position] = random.integers(0, 256)
        path.write_bytes(bytes(damaged))
        arguments = ["optimize", str(path), "-o", str(out), "--no-verify", "--strict", "-q"]
        done = click.testing.CliRunner().invoke(commands, arguments)
        codes.append(done.exit_code)
        assert done.exit_code in (0, 2), (bytes(damaged), done.stderr)
        if done.exit_code == 0:
            onnx.load(out)
            out.unlink()
        else:
            assert done.stderr.count("\n") == 1
        assert [one.name for one in folder.iterdir()] == ["m.onnx"]
    assert {0, 2} == set(codes)


def test_nested_500_deep(ortopt: Any, folder: Path) -> None:
    from ortopt.serialization.wire import field

    graph = proto().graph.SerializeToString()
    for _ in range(500):
        attribute = field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05"
        graph = field(1, field(2, b"y") + field(4, b"If") + field(5, attribute))
    (folder / "m.onnx").write_bytes(b"\x08\x08" + field(7, graph) + field(8, b"\x10\x11"))
    assert "nested" in refused(ortopt, folder / "m.onnx")


@pytest.mark.parametrize("place", [b"MatMul", b"\x0a\x01w", b"main"])
def test_what_is_not_utf8(ortopt: Any, folder: Path, place: bytes) -> None:
    data = proto().SerializeToString()
    assert place in data
    (folder / "m.onnx").write_bytes(data.replace(place, place[:-1] + b"\xff"))
    refused(ortopt, folder / "m.onnx")


# -- unusual, and fine ------------------------------------------------------------------------------------------------


def unsorted(model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(nodes))


def long_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("a", "a" * 100_000) for name in names]
    model.graph.node[2].attribute[1].g.node[0].input[0] = "a" * 100_000


def strange_names(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [name.replace("a", "\x1b[31m\n\u202e") for name in names]
        node.name = "\x1b[2J\n" + node.op_type
    model.graph.node[2].attribute[1].g.node[0].input[0] = "\x1b[31m\n\u202e"


def huge_inputs(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1 << 62
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1 << 62
    model.graph.node[2].attribute[1].g.node[0].input[1] = "a"


def negative_input(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1


def a_bomb(model: onnx.ModelProto) -> None:
    size = numpy_helper.from_array(np.array([1 << 40], np.int64), "size")
    model.graph.initializer.append(size)
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["size"], ["bomb"]))
    model.graph.node.insert(1, helper.make_node("ReduceSum", ["bomb"], ["sum"], keepdims=0))
    model.graph.node[3].op_type = "Mul"
    model.graph.node[3].input.append("sum")


def future_opset(model: onnx.ModelProto) -> None:
    model.opset_import[0].version = 10_000


def no_import_of_contrib_ops(model: onnx.ModelProto) -> None:
    """ONNX Runtime takes it: there is one version only."""
    model.graph.node[1].domain, model.graph.node[1].op_type = "com.microsoft", "QuickGelu"


def domain_spelled_out(model: onnx.ModelProto) -> None:
    for node in model.graph.node:
        node.domain = "ai.onnx"


def an_unknown_node_without_results(model: onnx.ModelProto) -> None:
    """An op that does something else than to compute."""
    model.opset_import.append(helper.make_opsetid("mine", 3))
    model.graph.node.append(onnx.NodeProto(op_type="Print", domain="mine", input=["b"]))


UNUSUAL: list[Change] = [unsorted, long_names, strange_names, huge_inputs, negative_input, a_bomb, future_opset]
UNUSUAL += [no_import_of_contrib_ops, domain_spelled_out, an_unknown_node_without_results]


@pytest.mark.parametrize("change", UNUSUAL, ids=lambda change: change.__name__)
def test_unusual_models(ortopt: Any, folder: Path, change: Change) -> None:
    made = proto()
    change(made)
    path, out = folder / "m.onnx", folder / "out.onnx"
    path.write_bytes(made.SerializeToString())
    done = ortopt("optimize", path, "-o", out, "--no-verify", "--strict")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    written = onnx.load(out)
    assert [value.name for value in written.graph.output] == ["y"]
    domains = {entry.domain for entry in written.opset_import}
    assert {node.domain for node in written.graph.node} <= domains
    assert any(node.domain == "mine" for node in written.graph.node) is ("mine" in domains)
    told = ortopt("info", path).stdout
    assert "\x1b" not in told
    assert "\u202e" not in told


# -- as real processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["cut", "missing", "circle", "not utf-8", "escapes"])
def test_real_processes(folder: Path, case: str) -> None:
    made = proto()
    name: str | bytes = "m.onnx"
    match case:
        case "circle":
            made = proto("m (float[2] x) => (float[2] y) { y = Neg (y) }")
        case "escapes":
            made.graph.node[1].input[0] = "\x1b]0;owned\x07\x1b[2J\r\nortopt: all is well\u202e\u2028"
    data = made.SerializeToString()
    match case:
        case "cut":
            data = data[:-30]
        case "not utf-8":
            name, data = b"m\xff\x1b[31m.onnx", b"no model"
    if case != "missing":
        Path(os.fsdecode(os.fsencode(folder) + b"/" + os.fsencode(name))).write_bytes(data)
    there = os.listdir(folder)  # noqa: PTH208 -- names as they are
    done = subprocess.run(
        [sys.executable, "-m", "ortopt", "optimize", name],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=folder,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.startswith(b"ortopt: ")
    assert done.stderr.count(b"\n") == 1
    assert done.stderr.decode()[:-1].isprintable()
    assert os.listdir(folder) == there  # noqa: PTH208
