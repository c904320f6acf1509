"""Models made to do harm, through the whole command line: a run ends, with a model that loads or with one line."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ortopt.serialization.wire import field, integer
from ortopt.verification import process as verification_process
from tests.serialization import models

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
Array = Any
Build = Callable[[], onnx.ModelProto | bytes]

NEG = "main (float[N] x) => (float[N] y) { y = Neg (x) }"


def parsed(text: str, opset: int = 17, imports: str = "", **initializers: Array) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}{imports}]> {text}')
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in initializers.items()
    )
    return made


def summed(op: str, **initializers: Array) -> Build:
    """A model that adds to its input the sum of a constant that would be enormous."""
    head = "main (float[2] x) => (float[a] y)"
    return lambda: parsed(f"{head} {{ {op} r = ReduceSum <keepdims = 0> (e) y = Add (x, r) }}", **initializers)


def repeated(first: str, step: str, last: str, times: int, **more: Any) -> Build:
    steps = " ".join(step.format(i=i, j=i + 1) for i in range(times))
    return lambda: parsed(f"{first} {steps} {last.format(i=times)} }}", **more)


def dim(text: str) -> Build:
    def build() -> onnx.ModelProto:
        made = parsed(NEG)
        made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = text
        return made

    return build


def functions(count: int, calls: int) -> Build:
    """Functions that call the next one so many times each."""

    def build() -> onnx.ModelProto:
        made = parsed("main (float[2] x) => (float[2] y) { y = me.f0 (x) }", imports=', "me": 1')
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("me", 1)]
        for i in range(count):
            op, domain = (f"f{i + 1}", "me") if i < count - 1 else ("Neg", "")
            nodes = [helper.make_node(op, [f"v{k}"], [f"v{k + 1}"], domain=domain) for k in range(calls)]
            made.functions.append(helper.make_function("me", f"f{i}", ["v0"], [f"v{calls}"], nodes, imports))
        return made

    return build


def nested(depth: int) -> Build:
    def build() -> onnx.ModelProto:
        made = parsed("main (float[2] x, bool c) => (float[2] y) { y = Neg (x) }")
        inner = helper.make_graph(
            [helper.make_node("Neg", ["x"], ["y0"])], "g", [], [helper.make_tensor_value_info("y0", 1, [2])]
        )
        for i in range(1, depth + 1):
            other = helper.make_graph(
                [helper.make_node("Abs", ["x"], [f"e{i}"])], "e", [], [helper.make_tensor_value_info(f"e{i}", 1, [2])]
            )
            node = helper.make_node("If", ["c"], [f"y{i}"], then_branch=inner, else_branch=other)
            inner = helper.make_graph([node], "g", [], [helper.make_tensor_value_info(f"y{i}", 1, [2])])
        made.graph.node[0].CopyFrom(inner.node[0])
        made.graph.output[0].name = f"y{depth}"
        return made

    return build


def nested_types(depth: int) -> Build:
    def build() -> bytes:
        kind = field(1, integer(1, 1))
        for _ in range(depth):
            kind = field(4, field(1, kind))
        value = field(1, b"x") + field(2, kind)
        return b"\x08\x08" + field(7, field(2, b"g") + field(11, value) + field(12, value)) + field(8, b"\x10\x11")

    return build


def nested_branches(depth: int) -> Build:
    """The same, deeper than protobuf itself would write it."""

    def build() -> bytes:
        graph = parsed(NEG).graph.SerializeToString()
        for _ in range(depth):
            branch = field(5, field(1, b"then_branch") + field(6, graph) + b"\xa0\x01\x05")
            graph = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + branch)
        return b"\x08\x08" + field(7, graph) + field(8, b"\x10\x11")

    return build


def with_attributes(**attributes: Any) -> Build:
    """Every attribute that passes look at, beyond all bounds."""

    def build() -> onnx.ModelProto:
        made = parsed(
            "main (float[2,3] x) => (float[a,b] y) { a = Transpose (x) b = Concat (a, a) c = Unsqueeze (b, k)"
            " d = Squeeze (c, k) e = Slice (d, k, k, k, k) f = Gather (e, k) g = ReduceSum (f, k) h = Flatten (g)"
            " i = Cast (h) j = Softmax (i) l = Split (j) m = Pad (l, k) y = Reshape (m, k) }",
            k=np.array([-(1 << 63)]),
        )
        for node in made.graph.node:
            known = onnx.defs.get_schema(node.op_type, 17).attributes
            made_of = [helper.make_attribute(name, value) for name, value in attributes.items() if name in known]
            node.attribute.extend(one for one in made_of if one.type == known[one.name].type.value)
        return made

    return build


def changed(change: Callable[[onnx.ModelProto], Any], text: str = NEG, **more: Any) -> Build:
    def build() -> onnx.ModelProto:
        made = parsed(text, **more)
        change(made)
        return made

    return build


def weight(**fields: Any) -> Build:
    """A model with one weight, of float32 unless that is said otherwise."""
    text = "main (float[2] x) => (float[a] y) { y = Add (x, w) }"
    return changed(lambda made: made.graph.initializer.append(TensorProto(name="w", **{"data_type": 1} | fields)), text)


ONE, MANY = np.ones(4, np.float32), np.array([1 << 40])
SYMBOLS = "s = Shape (x) a = Gather <axis = 0> (s, zero) b = Gather <axis = 0> (s, one) m0 = Add (a, b)"
LOOP = """main (float[2] x) => (float[2] y) { y = Loop (n, t, z) <body = b (int64 i, bool c, float[2] s)
    => (bool d, float[2] r) { d = Identity (c) r = Add (s, s) }> }"""
RANGE = "main (int64[2] x) => (int64[a] y) { e = Range (z, s, o) r = ReduceSum <keepdims = 0> (e) y = Add (x, r) }"

FINE: dict[str, Build] = {
    # What no folding may allocate
    "Expand": summed("e = Expand (c, s)", c=ONE[:1], s=np.array([1 << 20, 1 << 20])),
    "Tile": summed("e = Tile (c, s)", c=ONE, s=np.array([1 << 33])),
    "Range": lambda: parsed(RANGE, z=np.array(0), s=np.array(1 << 50), o=np.array(1)),
    "Pad": summed("e = Pad (c, s)", c=ONE, s=np.array([1 << 40, 1 << 40])),
    "Resize": summed("e = Resize (c, , , s)", c=ONE.reshape(1, 1, 2, 2), s=np.array([1, 1, 1 << 25, 1 << 25])),
    "OneHot": summed("e = OneHot (i, d, v)", i=np.arange(1000), d=np.array(1 << 40), v=ONE[:2]),
    "EyeLike": summed("z = ConstantOfShape (s) e = EyeLike <dtype = 1> (z)", s=np.array([1 << 17, 1 << 17])),
    "Gather": summed("z = ConstantOfShape <value = int64[1] {0}> (s) e = Gather (c, z)", c=ONE, s=MANY),
    "MatMul": summed("e = MatMul (u, v)", u=np.ones((9**5, 1), np.float32), v=np.ones((1, 9**5), np.float32)),
    "doubling": repeated(
        "main (float[2] x) => (float[a] y) {",
        "c{j} = Concat <axis = 0> (c{i}, c{i})",
        "y = Mul (c{i}, c{i})",
        60,
        c0=ONE,
    ),
    "an endless loop": lambda: parsed(LOOP, n=np.array(9 * 10**18), t=np.array(True), z=ONE[:2]),
    # What no shape inference may multiply
    "symbols squared": repeated(
        f"main (float[N,M] x) => (int64[] y) {{ {SYMBOLS}",
        "m{j} = Mul (m{i}, m{i})",
        "y = Identity (m{i})",
        40,
        zero=np.array(0),
        one=np.array(1),
    ),
    "sums doubled": repeated(
        "main (float[N] t0) => (float[a] y) {", "t{j} = Concat <axis = 0> (t{i}, t{i})", "y = Neg (t{i})", 100
    ),
    "a dimension of many brackets": dim("(" * 50_000 + "a" + ")" * 50_000),
    "a dimension that is a product of sums": dim("*".join(f"(a{i}+b{i})" for i in range(40))),
    "a dimension of many digits": dim("9" * 100_000),
    "a dimension that is a power": dim("9**9**9**9"),
    "a dimension with an escape sequence": dim("\x1b[2J\nN"),
    "an input beyond all sizes": lambda: parsed(
        f"main (float[{1 << 62},{1 << 62}] x) => (int64[2] y) {{ y = Shape (x) }}"
    ),
    "a tensor of no and of many": changed(
        lambda made: made.graph.initializer.append(TensorProto(name="w", data_type=1, dims=[0, 1 << 62]))
    ),
    # Depth and width
    "functions, 300 deep": functions(300, 1),
    "functions that double 40 times": functions(40, 2),
    "branches, 10 deep": nested(10),
    "branches, 18 deep": nested(18),
    "a sequence of sequences": nested_types(40),
    # Nonsense that is valid protobuf
    "attributes beyond all bounds": with_attributes(perm=[-(1 << 63), (1 << 63) - 1], axis=-(1 << 63), to=1),
    "an unknown op": lambda: parsed("main (float[2] x) => (float[2] y) { y = NoSuchOp (x) }"),
    "strides of 0": lambda: parsed(
        "main (float[1,1,4,4] x) => (float[a,b,c,d] y) { y = Conv <strides = [0, 0], group = 0> (w, w) }",
        w=np.ones((1, 1, 3, 3), np.float32),
    ),
    "the smallest integer": lambda: parsed(
        "main (int64[2] x) => (int64[2] y) { a = Div (i, z) b = Mod (i, z) c = Add (a, b) y = Add (x, c) }",
        i=np.array([-(1 << 63), 1]),
        z=np.array([-1, 0]),
    ),
    "the same output twice": changed(lambda made: made.graph.output.append(made.graph.output[0])),
    "strings that are not UTF-8": changed(
        lambda made: made.graph.initializer.append(TensorProto(name="s", data_type=8, dims=[1], string_data=[b"\xff"])),
        "main (string[1] x) => (bool[1] y) { y = Equal (x, s) }",
        opset=19,
    ),
    "two versions of an opset": changed(lambda made: made.opset_import.append(helper.make_opsetid("ai.onnx", 11))),
    "the same opset twice": changed(lambda made: made.opset_import.append(helper.make_opsetid("ai.onnx", 17))),
    "the largest opset": changed(lambda made: setattr(made.opset_import[0], "version", (1 << 63) - 1)),
    "IR version 1": changed(lambda made: setattr(made, "ir_version", 1)),
    "metadata of 8 MB": changed(lambda made: made.metadata_props.add(key="k", value="v" * (8 << 20))),
    "metadata of one key": changed(lambda made: [made.metadata_props.add(key="k", value=str(i)) for i in range(9)]),
    "a node of 10,000 inputs": changed(
        lambda made: made.graph.node[0].CopyFrom(helper.make_node("Concat", ["x"] * 10_000, ["y"], axis=0))
    ),
    "a tensor of 10,000 dimensions": weight(dims=[1] * 10_000 + [2], raw_data=bytes(8)),
    "an annotation of nothing": changed(lambda made: made.graph.quantization_annotation.add(tensor_name="nobody")),
}

BROKEN: dict[str, tuple[Build, str]] = {
    "an attribute of an unknown type": (
        changed(lambda made: made.graph.node[0].attribute.add(name="a", i=1).MergeFromString(b"\xa0\x01\x4d")),
        "has no type",
    ),
    "a node of 10,000 results": (
        changed(lambda made: made.graph.node[0].output.extend(map(str, range(10_000)))),
        "10001 outputs",
    ),
    "a type in 500 types": (nested_types(500), "nested"),
    "branches, 60 deep": (nested_branches(60), "nested"),
    "branches, 500 deep": (nested_branches(500), "nested"),
    "UTF-16": (lambda: parsed(NEG).SerializeToString().decode("latin-1").encode("utf-16"), "not an ONNX model"),
    "names in UTF-16": (lambda: parsed(NEG).SerializeToString().replace(b"Neg", b"N\0\xff"), "UTF-8"),
}


def written(folder: Path, build: Build) -> Path:
    made = build()
    path = folder / "m.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return path


@pytest.mark.parametrize("name", FINE)
def test_a_run_ends_with_a_model(ortopt: Any, tmp_path: Path, name: str) -> None:
    path, out = written(tmp_path, FINE[name]), tmp_path / "out.onnx"
    started = time.monotonic()
    done = ortopt("optimize", path, "-o", out, "--no-verify", "--max-memory", "4GB")
    assert time.monotonic() - started < 30
    assert "\x1b" not in done.stdout + done.stderr
    onnx.load(out)
    assert out.stat().st_size < path.stat().st_size + 2_000_000
    assert "\x1b" not in ortopt("info", path).stdout


@pytest.mark.parametrize("name", BROKEN)
def test_a_run_ends_with_one_line(ortopt: Any, tmp_path: Path, name: str) -> None:
    build, because = BROKEN[name]
    path = written(tmp_path, build)
    for command in ("optimize", "info"):
        done = ortopt(command, path, code=2)
        assert because in done.stderr
        assert done.stderr.startswith("ortopt: ")
        assert done.stderr.count("\n") == 1
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.processes
@pytest.mark.parametrize("name", ["Expand", "doubling", "an endless loop", "strides of 0"])
def test_verification_of_what_does_not_run_ends_too(
    ortopt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(verification_process, "PATIENCE", 3.0)
    path = written(tmp_path, FINE[name])
    done = ortopt("optimize", path, "-o", tmp_path / "out.onnx", "--max-memory", "2GB")
    assert "could not be verified: the original does not run here" in done.stderr
    assert done.stderr.count("\n") == 1


def test_cut_at_every_byte(ortopt: Any, tmp_path: Path) -> None:
    """Where a field ends protobuf sees no cut; everywhere else there is one line."""
    from click.testing import CliRunner

    from ortopt.cli.group import commands

    data = parsed("main (float[2] x) => (float[2] y) { a = Add (x, w) y = Neg (a) }", w=ONE[:2]).SerializeToString()
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        done = CliRunner().invoke(commands, ["optimize", str(path), "-o", str(out), "--no-verify", "-q"])
        assert done.exit_code == 2, cut
        assert done.stderr.startswith(f"ortopt: '{path}': ")
        assert done.stderr.count("\n") == 1
        assert not out.exists()


@pytest.mark.parametrize("overlap", [0, 4, 60])
def test_external_data_may_overlap(ortopt: Any, tmp_path: Path, overlap: int) -> None:
    made = parsed("main (float[2] x) => (float[a] y) { a = Concat <axis = 0> (x, u, v) y = Neg (a) }")
    for name, offset in (("u", 0), ("v", 64 - overlap)):
        tensor = TensorProto(name=name, data_type=1, dims=[16], data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "w.data"), ("offset", str(offset)), ("length", "64")):
            tensor.external_data.add(key=key, value=value)
        made.graph.initializer.append(tensor)
    (tmp_path / "w.data").write_bytes(np.arange(32, dtype=np.float32).tobytes())
    path = written(tmp_path, lambda: made)
    assert "could not" not in ortopt("optimize", path, "-o", tmp_path / "out.onnx").stderr


# -- the folder -------------------------------------------------------------------------------------------------------


def test_no_process_imports_from_the_current_folder(tmp_path: Path) -> None:
    written(tmp_path, lambda: parsed(NEG))
    marks = [tmp_path / "nt.py", tmp_path / "numpy.py"]  # pathlib asks for the one, a worker for the other
    for mark in marks:
        mark.write_text("raise SystemExit(1)", encoding="utf-8")
    command = [sys.executable, "-P", "-m", "ortopt", "optimize", "m.onnx"]  # -P, as the installed command has it
    done = subprocess.run(command, capture_output=True, env=ENVIRONMENT, cwd=tmp_path, check=False)
    assert done.returncode == 0
    assert b"verified  on" in done.stdout


# -- the disk ---------------------------------------------------------------------------------------------------------


def run(*arguments: str | Path, cwd: Path, **more: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ortopt", *arguments]
    return subprocess.run(command, capture_output=True, env=ENVIRONMENT, cwd=cwd, check=False, **more)


def large(folder: Path) -> Path:
    return written(folder, models.weights)


def test_a_full_device_is_one_line(ortopt: Any, tmp_path: Path) -> None:
    path = large(tmp_path)
    done = ortopt("optimize", path, "-o", "/dev/full", "--no-verify", code=2)
    assert "No space left" in done.stderr
    assert done.stderr.count("\n") == 1
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("option", ["-o", "--json", "--trace", "--dump-dir", "--inputs", "in"])
def test_a_name_that_is_too_long_is_one_line(ortopt: Any, tmp_path: Path, option: str) -> None:
    path, long = written(tmp_path, lambda: parsed(NEG)), tmp_path / ("n" * 300)
    done = ortopt("optimize", long if option == "in" else path, *(() if option == "in" else (option, long)), code=2)
    assert done.stderr.count("\n") == 1
    assert "File name too long" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


def test_a_disk_that_fills_leaves_the_old_model(tmp_path: Path) -> None:
    path = large(tmp_path)
    (tmp_path / "out.onnx").write_bytes(b"old")
    done = run(
        *("optimize", path, "-o", "out.onnx", "--no-verify"),
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"ortopt: cannot write")
    assert done.stderr.count(b"\n") == 1
    assert (tmp_path / "out.onnx").read_bytes() == b"old"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["m.onnx", "out.onnx"]


@pytest.mark.parametrize("external_data", ["inline", "copy"])
def test_two_processes_write_one_output(tmp_path: Path, external_data: str) -> None:
    path = large(tmp_path)
    command = [sys.executable, "-m", "ortopt", "optimize", str(path), "-o", "out.onnx", "--no-verify", "-q"]
    command += ["--external-data", external_data]
    both = [subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE) for _ in range(2)]
    assert [process.communicate(timeout=60)[1] for process in both] == [b"", b""]
    assert [process.returncode for process in both] == [0, 0]
    onnx.load(tmp_path / "out.onnx")
    assert len(list(tmp_path.iterdir())) == (2 if external_data == "inline" else 3)


def test_output_over_input(ortopt: Any, tmp_path: Path) -> None:
    path = large(tmp_path)
    ortopt("optimize", path, "-o", path)
    onnx.load(path)
    assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission(ortopt: Any, tmp_path: Path) -> None:
    path = large(tmp_path)
    path.chmod(0)
    assert "Permission denied" in ortopt("info", path, code=2).stderr
    path.chmod(0o600)
    tmp_path.chmod(0o500)
    try:
        assert "permission denied" in ortopt("optimize", path, code=2).stderr
    finally:
        tmp_path.chmod(0o700)


def test_no_permission_is_one_line(ortopt: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same where tests run as root."""
    path = large(tmp_path)
    opened = os.open

    def refused(name: Any, *arguments: Any, **more: Any) -> int:
        if os.fspath(name) == str(path):
            raise PermissionError(13, "Permission denied")
        return opened(name, *arguments, **more)

    monkeypatch.setattr(os, "open", refused)
    done = ortopt("optimize", path, code=2)
    assert done.stderr == f"ortopt: '{path}': Permission denied\n"


# -- the same bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["-O1", "-O2", "-O3", "-O4"])
def test_the_same_bytes_and_the_same_report_in_every_process(tmp_path: Path, level: str) -> None:
    import json

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(one) for key, one in value.items() if key != "seconds"}
        return [plain(one) for one in value] if isinstance(value, list) else value

    seen = set()
    for seed in ("0", "1234"):
        command = [sys.executable, "-m", "ortopt", "optimize", "zoo:control_flow__script17", level, "-o", "out.onnx"]
        command += ["--json", "report.json", "-q", "--external-data", "copy" if level == "-O4" else "auto"]
        environment = ENVIRONMENT | {"PYTHONHASHSEED": seed}
        subprocess.run(command, env=environment, cwd=tmp_path, check=True)
        report = json.dumps(plain(json.loads((tmp_path / "report.json").read_text())))
        seen.add(((tmp_path / "out.onnx").read_bytes(), report))
        assert '"verified": true' in report
    assert len(seen) == 1
