"""Count lines of code: ``python -m tools.lines [FOLDER ...]``, by default of the product and of the tests.

A line counts if a token of the program stands on it. Documentation strings, comments, blank lines and imports do not.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
GROUPS: Final = (("ortopt", "transformers"), ("tests",))

_NO_CODE: Final = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    | {tokenize.ENCODING, tokenize.ENDMARKER}
)


def count(text: str) -> int:
    """The lines of code of a module.

    Args:
        text: Its source.
    """
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = ((token.start[0], token.end[0]) for token in tokens if token.type not in _NO_CODE)
    lines = {line for first, last in spans for line in range(first, last + 1)}
    return len(lines - set(_ignored(ast.parse(text))))


def _ignored(tree: ast.AST) -> Iterator[int]:
    """The lines of imports and of documentation strings: those of modules, classes and functions, and of attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def files(folder: Path) -> list[Path]:
    """The modules below a folder, without the link from the package to the passes."""
    return sorted(path for path in folder.rglob("*.py") if "transformers" not in path.relative_to(ROOT).parts[1:])


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.lines", description=__doc__)
    parser.add_argument("folders", nargs="*", help="folders below the repository")
    given = parser.parse_args().folders
    for group in ((folder,) for folder in given) if given else GROUPS:
        paths = [path for folder in group for path in files(ROOT / folder)]
        lines = sum(count(path.read_text(encoding="utf-8")) for path in paths)
        print(f"{' + '.join(group)}: {lines:,} lines of code in {len(paths):,} modules")


if __name__ == "__main__":
    main()
