"""Modules that a command hardly ever needs wait until they are needed."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest

from ortopt.cli.deferred_modules import HARDLY_NEEDED

START = "import sys\nfrom ortopt.cli.deferred_modules import defer_hardly_needed\ndefer_hardly_needed()\n"


def output(code: str, *arguments: object) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_run_executes_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    ir.save(
        ir.from_onnx_text('<ir_version: 9, opset_import: ["" : 18]> m (float[2] x) => (float[2] y) { y = Relu(x) }'),
        path,
    )
    code = (
        "import atexit, sys\n"
        "loaded = lambda: [n for n, m in sys.modules.items() if not type(m).__name__.startswith('Waiting')]\n"
        "atexit.register(lambda: print(*loaded(), sep='\\n'))\n"
        "sys.argv = ['ortopt', 'optimize', *sys.argv[1:], '-O3', '--no-verify', '-q']\n"
        "from ortopt.cli import main\nmain()\n"
    )
    loaded = set(output(code, path, tmp_path / "out.onnx").split())
    assert "numpy" in loaded
    assert not loaded & HARDLY_NEEDED


@pytest.mark.parametrize("name", sorted(HARDLY_NEEDED))
def test_each_is_there_and_works_when_it_is_needed(name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip("this version of its library has no such module")
    code = (
        f"{START}import onnx_ir, onnx.defs, importlib\n"
        f"module = importlib.import_module({name!r})\n"
        "assert [item for item in vars(module) if not item.startswith('__')]\n"
        "assert type(module).__name__ == 'module', type(module)\n"
        "print(module.__name__)"
    )
    assert output(code).strip() == name


def test_protobuf_reads_and_writes_text_and_json() -> None:
    code = (
        f"{START}import onnx\nfrom google.protobuf import json_format, text_format\n"
        'model = onnx.parser.parse_model(\'<ir_version: 9, opset_import: ["" : 18]> m (float[2] x) => (float[2] y)'
        " { y = Relu(x) }')\n"
        "onnx.checker.check_model(model)\n"
        "assert json_format.Parse(json_format.MessageToJson(model), onnx.ModelProto()) == model\n"
        "assert text_format.Parse(text_format.MessageToString(model), onnx.ModelProto()) == model\n"
        "print(onnx.printer.to_text(model).count('Relu'))"
    )
    assert output(code).strip() == "1"


def test_others_are_found_as_always() -> None:
    assert output(f"{START}import onnx.defs; print(type(onnx.defs).__name__)").strip() == "module"


def test_it_is_installed_once() -> None:
    assert output(f"{START}defer_hardly_needed(); print(sum('Deferring' in repr(f) for f in sys.meta_path))") == "1\n"


def test_what_onnx_and_the_registry_ask_is_answered_at_once() -> None:
    code = (
        f"{START}import importlib.metadata as m\n"
        "answers = m.version('onnx'), m.entry_points(group='ortopt.nothing')\n"
        "assert type(m).__name__ == 'WaitingMetadata', type(m)\n"
        "print(answers == (m.distribution('onnx').version, ()), type(m).__name__, m.version('onnx') == answers[0])\n"
        "try: m.version('no-such-distribution')\n"
        "except m.PackageNotFoundError: print('absent')"
    )
    assert output(code).split() == ["True", "module", "True", "absent"]


def test_an_absent_distribution_is_an_error_of_the_module_itself() -> None:
    code = (
        f"{START}import importlib.metadata\n"
        "try: importlib.metadata.version('no-such-distribution')\n"
        "except importlib.metadata.PackageNotFoundError as error: print(error.name)"
    )
    assert output(code).strip() == "no-such-distribution"


def test_a_second_import_and_the_question_where_it_comes_from_execute_nothing() -> None:
    code = (
        f"{START}import onnx, onnx.compose, importlib\n"
        "importlib.import_module('onnx.compose')\n"
        "print(hasattr(onnx.compose, '__module__'), onnx.compose.__name__, type(onnx.compose).__name__)\n"
        "print(callable(onnx.compose.merge_models), type(onnx.compose).__name__)"
    )
    assert output(code).split() == ["False", "onnx.compose", "WaitingModule", "True", "module"]


def test_threads_that_need_it_at_the_same_time_get_it_whole(tmp_path: Path) -> None:
    (tmp_path / "calendar.py").write_text("import time\nfirst = 1\ntime.sleep(0.2)\nlast = 2\n")
    code = (
        f"{START}import threading\nsys.path.insert(0, sys.argv[1])\nimport calendar\n"
        "seen = []\n"
        "threads = [threading.Thread(target=lambda: seen.append(calendar.first + calendar.last)) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]; print(seen)"
    )
    assert output(code, tmp_path).strip() == "[3, 3, 3, 3]"


def test_one_that_fails_says_so_each_time(tmp_path: Path) -> None:
    (tmp_path / "calendar.py").write_text("raise ValueError('broken')\n")
    code = (
        f"{START}sys.path.insert(0, sys.argv[1])\nimport calendar\n"
        "for _ in range(2):\n"
        "    try: calendar.month\n"
        "    except ValueError as error: print(error)"
    )
    assert output(code, tmp_path).split() == ["broken", "broken"]
