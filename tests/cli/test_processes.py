"""What only a real process shows: start-up, streams, Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "80"}

SLOW = '''
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests in the background may ignore it
from ortopt import GraphTransformer, registry
from ortopt.cli import main

class Slow(GraphTransformer):
    """Time goes by."""

    def apply(self, graph, context):
        print("running", file=sys.stderr, flush=True)
        while True:
            time.sleep(0.01)
            context.offer(())

registry.installed().add(Slow, "a test")
main()
'''


def run(
    *arguments: str | Path, stdin: bytes | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "ortopt", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, env=ENVIRONMENT, cwd=cwd, check=False)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["optimize", "--help"], ["explain", "--help"], []])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        f"sys.argv = ['ortopt', *{arguments!r}]\n"
        "from ortopt.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == (0 if arguments else 1)
    modules = set(json.loads(done.stderr.splitlines()[-1]))
    heavy = {"onnx", "onnx_ir", "numpy", "onnxruntime", "rich", "sympy", "networkx", "ml_dtypes", "google.protobuf"}
    assert not modules & heavy


@pytest.mark.parametrize("wanted", ["", "3"])
def test_products_of_matrices_have_one_thread_unless_more_are_asked_for(wanted: str) -> None:
    code = (
        "import atexit, os, sys\n"
        "atexit.register(lambda: print(os.environ['OPENBLAS_NUM_THREADS'], file=sys.stderr))\n"
        "sys.argv = ['ortopt', '--version']\n"
        "from ortopt.cli import main\n"
        "main()\n"
    )
    environment = {key: value for key, value in ENVIRONMENT.items() if key != "OPENBLAS_NUM_THREADS"}
    environment |= {"OPENBLAS_NUM_THREADS": wanted} if wanted else {}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.strip() == (wanted or "1")


def test_a_run_writes_its_output_and_nothing_else(model: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "def seen(event, details):\n"
        "    if event == 'open' and details[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):\n"
        "        os.write(2, os.fsencode(os.path.dirname(os.path.abspath(details[0]))) + b'\\n')\n"
        "sys.addaudithook(seen)\n"
        "sys.argv = ['ortopt', 'optimize', *sys.argv[1:], '-o', 'out.onnx', '-q', '--no-verify']\n"
        "from ortopt.cli import main\n"
        "main()\n"
    )
    environment = ENVIRONMENT | {"PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, str(model)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    assert set(done.stderr.split()) == {str(tmp_path)}


def test_version() -> None:
    assert run("--version").stdout.startswith(b"ortopt, version 0.")


def test_from_stdin_to_stdout(model: Path, tmp_path: Path) -> None:
    done = run("optimize", "-", "--no-verify", stdin=model.read_bytes(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    made = onnx.load_from_string(done.stdout)
    assert sorted(node.op_type for node in made.graph.node) == ["Gemm", "Relu"]
    assert b"\nwritten   stdout\n" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_from_stdin_to_a_file_verified(model: Path, tmp_path: Path) -> None:
    done = run("optimize", "-", "-o", "out.onnx", "--json", "-", stdin=model.read_bytes(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["verified"] is True
    assert data["output"]["path"] == "out.onnx"
    assert (tmp_path / "out.onnx").is_file()


def test_nothing_on_stdin_is_2(tmp_path: Path) -> None:
    done = run("optimize", "-", stdin=b"", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.count(b"\n") == 1


def test_same_bytes_whatever_the_hash_seed(model: Path, tmp_path: Path) -> None:
    made = set()
    for seed in ("0", "7"):
        command = [sys.executable, "-m", "ortopt", "optimize", str(model), "-o", "-", "--no-verify"]
        environment = ENVIRONMENT | {"PYTHONHASHSEED": seed}
        made.add(subprocess.run(command, capture_output=True, env=environment, check=True).stdout)
    assert len(made) == 1


def test_a_reader_that_leaves_is_no_noise() -> None:
    command = f"{sys.executable} -m ortopt passes --json | head -c 1"
    done = subprocess.run(command, shell=True, capture_output=True, env=ENVIRONMENT, check=False)
    assert done.stderr == b""


STREAMS = {
    "info m.onnx >&-": (2, "cannot write to stdout: Bad file descriptor"),
    "optimize m.onnx --no-verify -o - >&-": (2, "cannot write the stream: Bad file descriptor"),
    "optimize m.onnx --no-verify -q <&- >&- 2>&-": (0, ""),
    "info - <&-": (2, "it is empty"),
    "info m.onnx --json >/dev/full": (2, "cannot write to stdout: No space left on device"),
    "--help >/dev/full": (2, "cannot write to stdout: No space left on device"),
    "passes >/dev/full": (2, "cannot write to stdout: No space left on device"),
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
@pytest.mark.parametrize("line", STREAMS)
def test_streams_that_are_closed_or_full_are_one_line(line: str, model: Path) -> None:
    code, said = STREAMS[line]
    command = f"{sys.executable} -m ortopt {line}"
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=ENVIRONMENT, cwd=model.parent, check=False
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stderr.count("\n") == (1 if code else 0)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send")
def test_ctrl_c_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW, "optimize", str(model), "--json", "r.json", "--trace", "t.json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd=tmp_path, text=True)
    try:
        assert process.stderr is not None
        assert process.stderr.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        started = time.monotonic()
        _, said = process.communicate(timeout=20)
        assert time.monotonic() - started < 5
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert said == "ortopt: cancelled\n"
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no terminals to open")
def test_a_terminal_gets_a_live_line_that_goes_away(model: Path, tmp_path: Path) -> None:
    import pty

    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "ortopt", "optimize", str(model), "--no-verify"]
    environment = ENVIRONMENT | {"TERM": "xterm-256color", "COLUMNS": "30"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=inner, env=environment)
    os.close(inner)
    said = b""
    while True:
        try:
            chunk = os.read(outer, 4096)
        except OSError:  # Linux's way to say that the other end has gone
            break
        if not chunk:
            break
        said += chunk
    os.close(outer)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"load" in said
    assert b"\nwritten " in out
    assert b"\x1b" not in out


ENDLESS = """
<ir_version: 9, opset_import: ["" : 17]>
main (float[2] x, int64 n, bool t) => (float[2] y) {
    y = Loop (n, t, x) <body = b (int64 i, bool c, float[2] s) => (bool d, float[2] r) { d = Identity (c) r = Neg (s) }>
}"""


def _children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            number, rest = path.read_text().split(" ", 1)
            if int(rest.rpartition(")")[2].split()[1]) == parent:
                found.append(int(number))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_killed_leaves_no_process_behind(how: signal.Signals, tmp_path: Path) -> None:
    """Verification runs a model that never ends, in a process of its own."""
    made = onnx.parser.parse_model(ENDLESS)
    for name, value in (("n", np.array(1 << 62)), ("t", np.array(True))):
        made.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    del made.graph.input[1:]
    onnx.save(made, tmp_path / "m.onnx")
    (tmp_path / "tmp").mkdir()
    command = [sys.executable, "-m", "ortopt", "optimize", "m.onnx"]
    environment = ENVIRONMENT | {"TMPDIR": str(tmp_path / "tmp")}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment, cwd=tmp_path)
    try:
        end = time.monotonic() + 60
        busy: list[int] = []
        while not busy and time.monotonic() < end:
            time.sleep(0.2)
            busy = [child for child in _children(process.pid) if _cpu(child) > 1.0]  # beyond its imports
        assert busy, "the model runs"
        process.send_signal(how)
        said = process.communicate(timeout=20)[1]
    finally:
        process.kill()
        process.wait()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{child}").exists() for child in busy) and time.monotonic() < end:
        time.sleep(0.2)
    left = [child for child in busy if Path(f"/proc/{child}").exists()]
    for child in left:
        os.kill(child, signal.SIGKILL)
    assert not left
    assert not (tmp_path / "m.opt.onnx").exists()
    if how == signal.SIGTERM:
        assert (process.returncode, said) == (128 + how, b"")
        assert list((tmp_path / "tmp").glob("ortopt*")) == []


def _cpu(process: int) -> float:
    """Seconds of processor time; 0 where it has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    "command", [["run", "m.onnx"], ["optimize", "m.onnx"], ["bench", "m.onnx", "--rounds", "1", "--seconds", "0.1"]]
)
def test_no_process_leaves_telemetry_in_the_home_folder(tmp_path: Path, command: list[str]) -> None:
    home = tmp_path / "home"
    (home / "tmp").mkdir(parents=True)
    text = "m (float[2] x) => (float[2] y) { a = Relu (x) y = Relu (a) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), tmp_path / "m.onnx")
    places = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "XDG_CACHE_HOME": str(home / "cache")}
    program = [sys.executable, "-m", "ortopt", *command]
    subprocess.run(program, cwd=tmp_path, env=ENVIRONMENT | places, check=True, capture_output=True, timeout=120)
    assert [path for path in home.rglob("*") if path.is_file() and "onnxruntime" in str(path).lower()] == []
    assert not list(home.rglob(".ses"))
