"""Write the sample output in README.md from a real run: ``python -m tools.document_sample``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
MODEL = "zoo:bert_small__dyn20raw"
COMMAND = f"ortopt optimize {MODEL} -o bert_small.opt.onnx"
_BLOCK = re.compile(
    r"(?<=<!-- sample, written by `python -m tools.document_sample` -->\n)```text\n.*?^```", re.M | re.S
)


def sample() -> str:
    """What the command prints."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", *COMMAND.split()],
            cwd=folder,
            env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": folder},
            capture_output=True,
            text=True,
            check=True,
        )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def shown() -> str:
    """What the page shows."""
    match = _BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert match is not None, "README.md has no sample"
    return match[0].removeprefix(f"```text\n$ {COMMAND}\n").removesuffix("\n```")


def words(text: str) -> list[str]:
    """A sample without what differs from run to run: numbers, hashes, and how many spaces they need."""
    return re.sub(r"\b[0-9a-f]{16}\b|[\d.,]+(e-\d+)?", "0", text).split()


if __name__ == "__main__":
    block = f"```text\n$ {COMMAND}\n{sample()}\n```"
    PAGE.write_text(_BLOCK.sub(lambda _: block, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
