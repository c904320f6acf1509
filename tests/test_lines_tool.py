"""What counts as a line of code."""

from tools.lines import count

TEXT = '''"""A module."""

from os import (
    path,
)

# why
LIMIT = 3
"""What it is."""


def both(
    left: int,
) -> str:
    """Documentation
    of two lines.
    """
    import sys  # later

    text = """a
b"""

    return text
'''


def test_documentation_comments_blanks_and_imports_are_no_code() -> None:
    assert count(TEXT) == len(["LIMIT", "def", "left", ") -> str", "text =", 'b"""', "return"])
