"""The layers of the design, as a table checked on the import graph; and what must not be loaded at start-up."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import networkx as nx
import pytest

from ortopt.discovery import pass_manifest
from ortopt.serialization.save import save
from ortopt.testing import parse
from tests.passes import example_files

ROOT = Path(__file__).parents[1]

LAYERS = (
    "errors option_kinds interface_options options cancellation terminal_text _version",
    "documents system semantics onnx_ir_internals",
    "graph ops",
    "serialization analysis views",
    "evaluation",
    "transformer context observers rule adapters framework",
    "patterns linear transpose partition opset_conversion half_precision interface",
    "transformers",
    "discovery registry runner manager instrumentation",
    "verification zoo",
    "optimization",
    "api extraction merging",
    "runtime",
    "reporting measurement testing",
    "regression integrations",
    "cli",
)
"""Lowest first; a module imports only from its own layer and from those below, for types too."""

FREE = {"_deferred_sympy", "__init__", "__main__"}
ORDER = {name: height for height, names in enumerate(LAYERS) for name in names.split()}


def modules() -> list[Path]:
    own = [path for path in (ROOT / "ortopt").rglob("*.py") if "transformers" not in path.relative_to(ROOT).parts]
    return own + list((ROOT / "transformers").rglob("*.py"))


def part_of(path: Path) -> str:
    """The part of the table that a file belongs to."""
    relative = path.relative_to(ROOT)
    if relative.parts[0] == "transformers":
        return "transformers"
    return relative.parts[1].removesuffix(".py")


def module_name(path: Path) -> str:
    """The name that a file is imported by."""
    relative = path.relative_to(ROOT).with_suffix("")
    if relative.parts[0] == "transformers":
        return ".".join(("ortopt", *relative.parts))
    return ".".join(relative.parts).removesuffix(".__init__")


@functools.lru_cache(maxsize=2)  # of the file at hand: all of them would take hundreds of megabytes
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


IMPORTING = {"import_module", "__import__"}


def beginning_of(argument: ast.expr) -> str:
    """The module that a call imports by its name, or the beginning of it that does not vary."""
    if isinstance(argument, ast.JoinedStr):
        argument = argument.values[0]
    return str(argument.value) if isinstance(argument, ast.Constant) else ""


@functools.cache
def imports(path: Path, *, at_start: bool = False) -> frozenset[str]:
    """What a file imports, anywhere in it, for types too: full names.

    Args:
        path: The file.
        at_start: Only what is imported when the file is, not what its functions import when they run.
    """
    found: set[str] = set()
    pending: list[ast.AST] = [tree(path)]
    while pending:
        node = pending.pop()
        if at_start and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending.extend(node.orelse)
            continue
        if at_start and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in IMPORTING and node.args:
            found.add(beginning_of(node.args[0]))
        pending.extend(ast.iter_child_nodes(node))
    return frozenset(found)


def test_the_table_has_a_row_for_every_module_and_for_nothing_else() -> None:
    parts = {part_of(path) for path in modules()}
    assert parts - FREE == ORDER.keys()


def test_modules_import_only_from_below() -> None:
    wrong = []
    for path in modules():
        part = part_of(path)
        for name in () if part in FREE else imports(path):
            pieces = name.split(".")
            if pieces[0] != "ortopt" or len(pieces) < 2 or pieces[1] in FREE or pieces[1] not in ORDER:
                continue
            if ORDER[pieces[1]] > ORDER[part]:
                wrong.append(f"{path.relative_to(ROOT)} must not import {name}: it is above")
    assert wrong == []


def test_a_module_imported_by_its_name_is_an_import(tmp_path: Path) -> None:
    path = tmp_path / "one.py"
    path.write_text(
        'import_module("ortopt.cli.group")\nimportlib.import_module(f"ortopt.reporting.{name}")\n__import__("os")'
    )
    assert imports(path) == {"ortopt.cli.group", "ortopt.reporting.", "os"}


def test_no_import_goes_in_a_circle() -> None:
    names = {module_name(path): path for path in modules() if part_of(path) not in FREE}
    graph = nx.DiGraph((name, found) for name, path in names.items() for found in imports(path) & names.keys())
    assert [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1] == []


def test_the_framework_knows_no_pass_by_name() -> None:
    passes = {module_name(path) for path in (ROOT / "transformers").rglob("*.py")}
    for path in (ROOT / "ortopt").rglob("*.py"):
        if "transformers" in path.relative_to(ROOT).parts or "transformers" not in path.read_text(encoding="utf-8"):
            continue
        named = passes & imports(path)
        assert not named, f"{path.relative_to(ROOT)} imports {named}"


def test_contents_are_written_in_one_place() -> None:
    for path in (path for path in modules() if "CONTENTS" in path.read_text(encoding="utf-8")):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                named = ast.unparse(node.slice).split(".")[-1] == "CONTENTS"
                assert not named or path.name == "facts.py", (
                    f"{path.name}:{node.lineno} writes contents past set_contents"
                )


def test_onnxruntime_is_imported_lazily_and_only_where_it_may_be() -> None:
    allowed = {"evaluation", "verification", "measurement", "runtime"}
    own_processes = {"ortopt.evaluation.child", "ortopt.verification.worker"}
    for path in (path for path in modules() if "onnxruntime" in path.read_text(encoding="utf-8")):
        if any(name.split(".")[0] == "onnxruntime" for name in imports(path)):
            where = str(path.relative_to(ROOT))
            assert part_of(path) in allowed or "providers" in where, f"{where} imports onnxruntime"
        if module_name(path) not in own_processes:
            assert "onnxruntime" not in {name.split(".")[0] for name in imports(path, at_start=True)}, path


def test_the_garbage_collector_belongs_to_the_process() -> None:
    """A library call leaves it alone; the command line and `ortopt check` have processes of their own."""
    assert {part_of(path) for path in modules() if "gc" in imports(path)} == {"cli", "regression"}


def test_passes_and_their_tests_match_one_to_one() -> None:
    passes = {name for entry in pass_manifest.read().values() for name in entry.passes}
    tests = {path.stem.removeprefix("test_") for path in (ROOT / "tests" / "passes").glob("test_*.py")}
    assert passes == tests | set(example_files.passes())


def figures_in_strings(source: ast.Module) -> list[str]:
    """The measured speeds and times in documentation strings, of constants too."""
    texts = (
        " ".join(statement.value.value.split())
        for statement in ast.walk(source)
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
    figure = re.compile(r"\d (?:times (?:as (?:fast|slow|long)|for|with|faster|slower)|ms\b|(?:milli|micro)seconds)")
    return [text for text in texts if figure.search(text)]


def test_a_measured_figure_is_found() -> None:
    assert figures_in_strings(ast.parse('"""Is 1.13\ntimes as fast."""'))
    assert not figures_in_strings(ast.parse('"""Axis k times as long, 2 times 3."""'))


@pytest.mark.parametrize("room", ["transformers", "ortopt/patterns", "ortopt/linear", "ortopt/transpose"])
def test_figures_stand_in_the_table_of_costs_and_not_in_documentation_strings(room: str) -> None:
    for path in (ROOT / room).rglob("*.py"):
        assert not figures_in_strings(tree(path)), path.relative_to(ROOT)


def test_passes_live_in_folders_of_families() -> None:
    files = [path for path in (ROOT / "transformers").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.suffix for path in files} == {".py"}
    assert "__init__.py" not in {path.name for path in files}
    assert ROOT / "transformers" not in {path.parent for path in files}
    for path in modules():
        assert path.stem not in {"utils", "helpers", "common"}, path


def loaded_by(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running some code."""
    script = f"import sys\n{code}\nprint('\\n'.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_importing_ortopt_loads_nothing_heavy() -> None:
    assert not loaded_by("import ortopt") & {"onnx", "onnx_ir", "numpy", "onnxruntime", "sympy", "rich", "click"}


def test_importing_the_api_loads_neither_onnxruntime_nor_networkx() -> None:
    loaded = loaded_by("from ortopt import optimize, GraphTransformerManager, RewriteRule")
    assert not loaded & {"onnxruntime", "networkx", "rich"}


def test_a_library_import_leaves_the_import_system_alone() -> None:
    code = "before = list(sys.meta_path); from ortopt import optimize; assert sys.meta_path == before"
    assert "sympy" in loaded_by(code), "onnx-ir imports sympy no more: drop ortopt._deferred_sympy"


def test_who_asks_for_it_gets_the_api_without_sympy() -> None:
    assert "sympy" not in loaded_by("import ortopt; ortopt.defer_sympy(); from ortopt import optimize")


def test_onnx_ir_works_without_sympy_and_with_it_when_asked() -> None:
    code = (
        "import ortopt; ortopt.defer_sympy(); import onnx_ir; assert 'sympy' not in sys.modules;"
        " assert str(onnx_ir.SymbolicDim('N') + 1) == 'N + 1'"
    )
    assert "sympy" in loaded_by(code)
    loaded_by(
        "import ortopt; ortopt.defer_sympy(); import onnx_ir, sympy;"
        " assert sympy.Symbol('x') + 0 == sympy.Symbol('x'); sympy.simplify('x+x')"
    )


@pytest.mark.parametrize("command", ["info", "optimize --no-verify -o OUT"])
def test_commands_run_without_sympy(command: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(parse("main (float[2] x) => (float[2] y) { y = Relu (x) }"), path)
    arguments = [*command.replace("OUT", str(tmp_path / "out.onnx")).split(), str(path)]
    code = (
        "from ortopt.cli import main\n"
        f"sys.argv = ['ortopt', *{arguments!r}]\n"
        "import contextlib, io\n"
        "try:\n    with contextlib.redirect_stdout(io.StringIO()):\n        main()\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
    )
    loaded = loaded_by(code)
    assert "onnx_ir" in loaded
    assert "sympy" not in loaded


@pytest.mark.parametrize("command", ["--help", "--version", "optimize --help"])
def test_the_command_line_starts_without_onnx(command: str) -> None:
    code = (
        "from ortopt.cli import main\n"
        f"sys.argv = ['ortopt', *{command.split()!r}]\n"
        "import contextlib, io\n"
        "try:\n    with contextlib.redirect_stdout(io.StringIO()):\n        main()\n"
        "except SystemExit as stop:\n    assert not stop.code\n"
    )
    assert not loaded_by(code) & {"onnx", "onnx_ir", "numpy", "onnxruntime", "sympy"}


def test_the_public_names_are_pinned() -> None:
    import ortopt

    assert sorted(ortopt.__all__) == ortopt.__all__
    for name in ortopt.__all__:
        assert getattr(ortopt, name) is not None
    required = {"TransformerLevel", "GraphTransformer", "RewriteRule", "GraphTransformerManager", "CancellationToken"}
    assert required | {"optimize"} <= set(ortopt.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = ortopt.nonsense
