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
        "loaded = lambda: [n for n, m in sys.modules.items() if type(m).__name__ != '_LazyModule']\n"
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
    assert output(f"{START}import onnx.helper; print(type(onnx.helper).__name__)").strip() == "module"


def test_it_is_installed_once() -> None:
    assert output(f"{START}defer_hardly_needed(); print(sum('Deferring' in repr(f) for f in sys.meta_path))") == "1\n"
