"""Mutants of ortopt's code by address: a function's name and the text that changes, so that files may move."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Final

from fuzzing.code_mutants.changes import Function, changed, changes

ROOT: Final = Path(__file__).parents[2]

FOLDERS: Final = ("ortopt", "transformers")

PER_FUNCTION: Final = 2
"""Mutants of one function among those that are drawn, at the most."""


@dataclass(frozen=True, order=True)
class Address:
    """Where a mutant is, whatever file its function lies in.

    Attributes:
        function: The qualified name of the outermost function: ``GemmFusion.match``.
        kind: What is changed: a comparison, a constant, a guard …
        text: The text that changes.
        becomes: The text in its place.
        occurrence: Its number among equal texts of that function.
    """

    function: str
    kind: str
    text: str
    becomes: str
    occurrence: int


@dataclass(frozen=True)
class Mutant:
    """A mutant in today's files.

    Attributes:
        address: Where it is.
        path: The file, relative to the project.
        number: The number of the change among those of the function.
    """

    address: Address
    path: str
    number: int


def sources() -> list[Path]:
    """The product's files: the passes once, though a link leads to them as well."""
    return sorted(
        path
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if "transformers" not in path.relative_to(ROOT).parts[1:]
    )


def mutants(names: Collection[str] | None = None) -> dict[Address, list[Mutant]]:
    """The mutants of the product by address; one with several places has a name that several functions share.

    Args:
        names: Qualified names of the functions; all if None.
    """
    found: dict[Address, list[Mutant]] = {}
    for path in sources():
        for mutant in mutants_of(str(path.relative_to(ROOT)), names):
            found.setdefault(mutant.address, []).append(mutant)
    return found


def mutants_of(path: str, names: Collection[str] | None = None) -> Iterator[Mutant]:
    """The mutants of one file, given by its path in the project, in functions of some names or in all."""
    for name, function in functions(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
        if names is not None and name not in names:
            continue
        seen: Counter[tuple[str, str, str]] = Counter()
        for number, (node, kind, replacement) in enumerate(changes(function)):
            text = (kind, _text(node), _text(replacement))
            yield Mutant(Address(name, *text, seen[text]), path, number)
            seen[text] += 1


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """The outermost functions and methods of a module, with their qualified names."""
    pending: list[tuple[str, ast.stmt]] = [("", statement) for statement in reversed(tree.body)]
    while pending:
        prefix, statement = pending.pop()
        if isinstance(statement, Function):
            yield f"{prefix}{statement.name}", statement
        elif isinstance(statement, ast.ClassDef):
            pending.extend((f"{prefix}{statement.name}.", inner) for inner in reversed(statement.body))


def drawn(seed: int, count: int, reached: Mapping[tuple[str, str], Sequence[str]]) -> list[Mutant]:
    """Mutants drawn by a seed, few of each function.

    Args:
        seed: The seed.
        count: How many.
        reached: The tests that call each function, by file and qualified name; a function without any is left out.
    """
    unique = [places[0] for _, places in sorted(mutants().items()) if len(places) == 1]
    random.Random(seed).shuffle(unique)
    taken: Counter[tuple[str, str]] = Counter()
    chosen: list[Mutant] = []
    for mutant in unique:
        function = (mutant.path, mutant.address.function)
        if len(chosen) < count and taken[function] < PER_FUNCTION and reached.get(function):
            taken[function] += 1
            chosen.append(mutant)
    return chosen


def code_of(mutant: Mutant) -> CodeType:
    """The compiled code of the changed function.

    Raises:
        LookupError: The file has no such function.
    """
    tree = ast.parse((ROOT / mutant.path).read_text(encoding="utf-8"))
    function = next(found for name, found in functions(tree) if name == mutant.address.function)
    mutated = changed(function, mutant.number)
    for parent in ast.walk(tree):
        body = getattr(parent, "body", None)
        if isinstance(body, list) and any(statement is function for statement in body):
            body[next(at for at, statement in enumerate(body) if statement is function)] = mutated
    pending = [compile(tree, str(ROOT / mutant.path), "exec")]
    while pending:
        code = pending.pop()
        if code.co_qualname == mutant.address.function:
            return code
        pending.extend(constant for constant in code.co_consts if isinstance(constant, CodeType))
    raise LookupError(f"{mutant.path} has no {mutant.address.function}")


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.comprehension):
        conditions = "".join(f" if {ast.unparse(condition)}" for condition in node.ifs)
        return f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}{conditions}"
    if isinstance(node, ast.If):
        return f"if {ast.unparse(node.test)}: {ast.unparse(node.body[0]).partition(chr(10))[0]}"
    return ast.unparse(node)
