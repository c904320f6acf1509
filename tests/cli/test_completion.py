"""What shells complete: commands, options, files, models of the zoo, passes; nothing heavy is loaded for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"onnx", "onnx_ir", "numpy", "onnxruntime", "rich", "networkx"}
SCRIPT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
sys.argv = ["ortopt"]
from ortopt.cli import main
main()
"""


def completed(words: str, position: int, shell: str = "bash", partial: str = "") -> tuple[list[str], set[str]]:
    """What is printed for a shell, and the modules that were loaded."""
    asked = {"_ORTOPT_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": partial or str(position)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    return done.stdout.splitlines(), set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize(
    ("words", "position", "expected"),
    [
        ("ortopt op", 1, ["plain,optimize"]),
        ("ortopt optimize --prof", 2, ["plain,--profile"]),
        ("ortopt optimize --fusions d", 3, ["plain,default"]),
        ("ortopt optimize m", 2, ["file,m"]),
        ("ortopt optimize m.onnx -o out", 4, ["file,out"]),
        ("ortopt run m.onnx --inputs a", 4, ["file,a"]),
        ("ortopt info zo", 2, ["plain,zoo:", "file,zo"]),
        ("ortopt info zoo : bert_small__t", 4, ["plain,bert_small__ts17"]),
        ("ortopt zoo grow bert_small__t", 3, ["plain,bert_small__ts17"]),
        ("ortopt costs m", 2, ["plain,measure"]),
        ("ortopt costs compare mi", 3, ["file,mi"]),
        ("ortopt optimize m --costs mi", 4, ["file,mi"]),
        (
            "ortopt explain m.onnx att",
            3,
            [
                "plain,attention",
                *(f"plain,attention_{name}" for name in ("fusion", "guarding", "mask_conversion", "transpose_fusion")),
            ],
        ),
        ("ortopt passes qdq_f", 2, ["plain,qdq_final_cleanup"]),
        ("ortopt optimize m --disable a,qdq_f", 4, ["plain,a,qdq_final_cleanup"]),
    ],
)
def test_bash(words: str, position: int, expected: list[str]) -> None:
    found, modules = completed(words, position)
    assert found == expected
    assert not HEAVY & modules


def test_bash_completes_after_a_colon() -> None:
    found, _ = completed("ortopt info zoo :", 3)
    assert "plain,bert_small__ts17" in found


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_take_a_colon_as_it_is(shell: str) -> None:
    partial = "zoo:bert_small__t" if shell == "fish" else ""
    found, _ = completed("ortopt info zoo:bert_small__t", 2, shell, partial)
    assert any("zoo:bert_small__ts17" in line for line in found)


@pytest.mark.parametrize(
    ("shell", "mark"), [("bash", "complete -o"), ("zsh", "compdef"), ("fish", "complete --no-files")]
)
def test_each_shell_gets_its_script(shell: str, mark: str) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("click asks bash for its version, and there is none")
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['ortopt']; from ortopt.cli import main; main()"],
        env=os.environ | {"_ORTOPT_COMPLETE": f"{shell}_source"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert mark in done.stdout
    assert "_ORTOPT_COMPLETE" in done.stdout


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_a_real_bash_completes(tmp_path: Path) -> None:
    command = tmp_path / "ortopt"
    command.write_text(f"#!{sys.executable}\nimport sys\nsys.argv[0] = 'ortopt'\nfrom ortopt.cli import main\nmain()\n")
    command.chmod(0o755)
    script = (
        'eval "$(_ORTOPT_COMPLETE=bash_source ortopt)"; COMP_WORDS=(ortopt info zoo : bert_small__t); COMP_CWORD=4;'
        ' _ortopt_completion ortopt; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["bert_small__ts17"], done.stderr
