"""The pages name what exists: modules, functions, files, passes, sections; their tables agree with the code."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from ortopt.discovery import pass_manifest
from tests.all_passes.pass_examples import arguments
from tests.test_architecture import LAYERS

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md"))])
WRAPPED = (
    "README", "CONTRIBUTING", "CHANGELOG", "docs/architecture", "docs/writing_passes", "docs/glossary", "docs/levels",
    "docs/cookbook", *(f"docs/coming_from/{path.stem}" for path in sorted((ROOT / "docs/coming_from").glob("*.md"))),
)  # fmt: skip
COLUMNS = 100
FOLDERS = ("ortopt", "transformers", "tests", "tools", "fuzzing", "benchmarks", "docs", "models")
KINDS = "elimination|fusion|folding|sharing|conversion|decomposition|packing|reordering|rebuilding|inlining|hoisting"
KINDS += "|propagation|canonicalization|reassociation|unrolling|merging|quantization|guarding"


def text_of(name: str) -> str:
    return (ROOT / f"{name}.md").read_text(encoding="utf-8")


def prose(page: Path) -> str:
    """A page without its blocks of code and drawings."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def codes(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, up to the next one, without their header rows."""
    section = re.split(r"^#+ ", text.partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    table = [line.strip().strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    ends = [i for i, row in enumerate(table) if set("".join(row)) <= {"-", " ", "|"}]
    return [[cell.strip() for cell in row] for i, row in enumerate(table) if i not in ends and i + 1 not in ends]


# -- names -------------------------------------------------------------------------------------------------------------


def keys_of_files() -> set[str]:
    """Names below ``ortopt.`` that stand in files and metadata, and are no modules."""
    from ortopt.graph import provenance
    from ortopt.partition import groups
    from ortopt.semantics import GROUP_DOMAIN

    keys = {value for name, value in (*vars(groups).items(), *vars(provenance).items()) if name.endswith("_KEY")}
    return keys | {GROUP_DOMAIN}


def member(of: Any, name: str) -> Any:
    """An attribute of a module or a class; of a dataclass, a field."""
    if dataclasses.is_dataclass(of) and name in {field.name for field in dataclasses.fields(of)}:
        return None
    if isinstance(of, type) and any(name in vars(kind).get("__annotations__", {}) for kind in of.__mro__):
        return None
    if isinstance(of, type) and not hasattr(of, name):  # what the constructor sets
        source = Path(sys.modules[of.__module__].__file__ or "").read_text(encoding="utf-8")
        assert re.search(rf"\bself\.{name}\b", source), f"{of.__qualname__} has no {name}"
        return None
    return getattr(of, name)


def resolve(dotted: str) -> None:
    """Fail unless a dotted name below ``ortopt`` is a module, or something in one."""
    pieces = dotted.split(".")
    found: Any = importlib.import_module(pieces[0])
    for i, piece in enumerate(pieces[1:], 1):
        try:
            found = importlib.import_module(".".join(pieces[: i + 1]))
        except ModuleNotFoundError:
            found = member(found, piece)


def named() -> Iterator[tuple[str, str]]:
    """The dotted names and the paths in the pages' prose: (page, name)."""
    for page in PAGES:
        for code in codes(prose(page)):
            if "NAME" in code or "FAMILY" in code:  # a file that is yet to be written
                continue
            if re.fullmatch(r"ortopt(\.\w+)+(\(\))?", code) or re.fullmatch(rf"({'|'.join(FOLDERS)})/[\w./-]*", code):
                yield page.name, code.removesuffix("()")


@pytest.mark.parametrize(("page", "name"), dict.fromkeys(named()))
def test_what_is_named_exists(page: str, name: str) -> None:
    if "/" in name:
        assert (ROOT / name).exists(), f"{page}: there is no {name}"
    elif name not in keys_of_files():
        resolve(name)


def links() -> Iterator[tuple[Path, str, str]]:
    for page in PAGES:
        for shown, target in re.findall(r"\[([^\]]+)\]\(([^)\s]+)\)", prose(page)):
            if not re.match(r"https?:", target):
                yield page, shown, target


@pytest.mark.parametrize(
    ("page", "shown", "target"), dict.fromkeys(links()), ids=lambda part: part.name if isinstance(part, Path) else part
)
def test_links_lead_somewhere(page: Path, shown: str, target: str) -> None:
    """A link to a file; of a heading in a page; or of a name, to the source that defines it, or offers it."""
    path, _, anchor = target.partition("#")
    file = (page.parent / path).resolve() if path else page
    assert file.exists(), f"{page.name} links to {target}"
    if anchor:
        assert anchor in anchors(file), f"{target}: no such heading"
    code = re.fullmatch(r"`([\w.]+?)(\(\))?`", shown)
    if code and file.suffix == ".py" and file.is_relative_to(ROOT):
        module: Any = importlib.import_module(module_of(file))
        if code[1] != module.__name__:
            for piece in code[1].split("."):
                module = member(module, piece)


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    name = ".".join(part for part in parts if part != "__init__")
    return f"ortopt.{name}" if parts[0] == "transformers" else name


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_passes_that_are_named_exist(page: Path) -> None:
    passes = {name for entry in pass_manifest.read().values() for name in entry.passes}
    defined = {snake for block in blocks("python", page.read_text(encoding="utf-8")) for snake in pass_names(block)}
    says = {code for code in codes(prose(page)) if re.fullmatch(rf"[a-z0-9]+(_[a-z0-9]+)*_({KINDS})", code)}
    assert says <= passes | defined


def pass_names(block: str) -> list[str]:
    from ortopt.transformer import snake_case

    return [snake_case(name) for name in re.findall(r"^class (\w+)", block, re.MULTILINE)]


@pytest.mark.parametrize("name", WRAPPED)
def test_lines_fit(name: str) -> None:
    """Tables, and lines that are one link or one word, cannot be broken."""
    for number, line in enumerate(text_of(name).splitlines(), 1):
        unbreakable = line.startswith("|") or " " not in re.sub(r"\[[^\]]*\]\([^)]*\)", "link", line.lstrip("- "))
        assert len(line) <= COLUMNS or unbreakable, f"{name}.md:{number} has {len(line)} columns"


# -- docs/architecture.md ----------------------------------------------------------------------------------------------


def test_the_table_of_layers_is_the_tests() -> None:
    table = rows(text_of("docs/architecture"), "## The layers")
    assert [row[0] for row in table] == [str(number) for number in range(1, len(LAYERS) + 1)]
    assert [set(codes(row[1])) for row in table] == [set(layer.split()) for layer in LAYERS]


def test_the_tree_shows_every_room_and_module() -> None:
    (tree,) = (block for block in blocks("text", text_of("docs/architecture")) if block.startswith("ortopt/"))
    folder = ROOT / "ortopt"
    rooms = {f"{path.name}/" for path in folder.iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    shown = set(re.findall(r"^  ([\w/]+)", tree, re.MULTILINE))
    assert {name for name in shown if name.endswith("/")} == rooms
    assert {name for name in shown if not name.endswith("/")} == modules


# -- docs/writing_passes.md --------------------------------------------------------------------------------------------

GUIDE = text_of("docs/writing_passes")


@pytest.mark.parametrize("block", blocks("python", GUIDE), ids=lambda block: "_".join(pass_names(block)) or "more")
def test_the_guides_blocks_run(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in a folder with a model; its tests, if it has some, as well."""
    from ortopt.serialization.save import save
    from ortopt.testing import parse

    save(parse("main (float[N,8] x) => (float[N,8] y) { a = Neg (x) y = Neg (a) }"), tmp_path / "model.onnx")
    file = tmp_path / "block.py"
    file.write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(file), run_name="__main__")
    for test in (each for name, each in found.items() if name.startswith("test_")):
        for given in arguments(test):
            test(**given)


def public_names(module: ModuleType) -> set[str]:
    """What a module defines or offers: no modules, no type variables, nothing of others."""
    offered = getattr(module, "__all__", None)
    if offered is None:
        tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
        offered = [name for statement in tree.body for name in defined_by(statement, module.__name__)]
    return {
        name
        for name in offered
        if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType | TypeVar)
    }


def defined_by(statement: ast.stmt, module: str) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        names = (name for target in statement.targets for name in ast.walk(target) if isinstance(name, ast.Name))
        return [name.id for name in names]
    if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(module):
        return [alias.asname or alias.name for alias in statement.names]
    return []


def test_the_guide_lists_every_question() -> None:
    from ortopt.graph import match

    questions = "".join(
        re.split(r"^## ", part, maxsplit=1, flags=re.MULTILINE)[0] for part in GUIDE.split("## Questions\n")[1:]
    )
    listed = {re.sub(r"\(.*", "", code) for code in codes(questions)}
    assert public_names(match) <= listed


def test_the_guides_edits_and_questions_exist() -> None:
    """A name with arguments in the last column of a table is a function of the module that its section is about."""
    from ortopt.context import Context
    from ortopt.graph import edit, match

    for heading, homes in (("## Questions", (match,)), ("## Edits", (Context, edit.Editor, edit))):
        section = re.split(r"^## ", GUIDE.partition(f"{heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        answers = [line.strip("| ").split(" | ")[-1] for line in section.splitlines() if line.startswith("| ")]
        calls = {name.removeprefix("edit.") for cell in answers for name in re.findall(r"`(?!ir\.)([\w.]+)\(", cell)}
        assert calls, heading
        for name in calls:
            assert any(hasattr(home, name) for home in homes), f"{heading}: {name}"


def test_the_guide_lists_every_edit() -> None:
    from ortopt.context import Context
    from ortopt.graph.edit import Editor

    section = re.split(r"^## ", GUIDE.partition("## Edits\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    listed = set(re.findall(r"\w+", " ".join(codes(section))))
    assert {name for kind in (Context, Editor) for name in dir(kind) if not name.startswith("_")} - {"edit"} <= listed


def test_the_guide_explains_every_declaration() -> None:
    from ortopt.rule import RewriteRule

    declared = set(RewriteRule.__annotations__) | set(RewriteRule.__mro__[1].__annotations__)
    declared -= {name for name in declared if name.startswith("_")}
    assert declared <= {code for row in rows(GUIDE, "## What a pass declares") for code in codes(row[0])}


# -- docs/glossary.md --------------------------------------------------------------------------------------------------


def test_the_glossary_is_in_order_and_linked() -> None:
    entries = re.findall(r"^- \*\*(.+?)\*\*(.*?)(?=^- |^#|\Z)", text_of("docs/glossary"), re.MULTILINE | re.DOTALL)
    terms = [term.lower() for term, _ in entries]
    assert terms == sorted(terms)
    assert len(terms) == len(set(terms))
    for term, explanation in entries:
        assert "](" in explanation, f"{term} leads nowhere"


# -- CHANGELOG.md ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["README", "CONTRIBUTING", "CHANGELOG"])
def test_pages_for_users_name_no_place_of_work(name: str) -> None:
    root_of_a_machine = r"(?<![\w.:/~-])/[a-z]+/"
    assert not re.search(rf"{root_of_a_machine}|issue #?\d", text_of(name))
