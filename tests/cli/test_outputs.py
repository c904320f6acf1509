"""No output takes the place of a file that the run reads, whatever it is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortopt.errors import OutputError
from ortopt.serialization.load import load
from ortopt.serialization.save import save
from ortopt.testing import parse


@pytest.fixture
def inputs_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A model with external data, and inputs, in the current folder: path by what it is."""
    monkeypatch.chdir(tmp_path)
    plain = parse(
        f"main (float[2,4096] x) => (float[2,4096] y) <float[4096] w = {{{', '.join(['2'] * 4096)}}}> "
        "{ a = Identity (x) y = Mul (a, w) }"
    )
    saved = save(plain, "m.onnx", external_data="copy")
    assert saved.data_path is not None
    np.savez("in.npz", x=np.ones((2, 4096), np.float32))
    return {"the model": "m.onnx", "external data of the model": saved.data_path.name, "the inputs": "in.npz"}


def _names(folder: str = ".") -> list[str]:
    return sorted(path.name for path in Path(folder).iterdir())


def _symlink(path: str) -> str:
    Path("soft").symlink_to(path)
    return "soft"


def _hard_link(path: str) -> str:
    Path("hard").hardlink_to(path)
    return "hard"


def _elsewhere(path: str) -> str:
    Path("folder").mkdir()
    return f"folder/../{path}"


SPELLINGS: dict[str, Callable[[str], str]] = {
    "the same": str,
    "absolute": lambda path: str(Path(path).absolute()),
    "another way": _elsewhere,
    "symlink": _symlink,
    "hard link": _hard_link,
}
OUTPUTS = {
    "-o": ["optimize", "m.onnx", "--inputs", "in.npz"],
    "optimize --json": ["optimize", "m.onnx", "--inputs", "in.npz"],
    "optimize --trace": ["optimize", "m.onnx", "--inputs", "in.npz"],
    "run --outputs": ["run", "m.onnx", "--inputs", "in.npz"],
    "run --trace": ["run", "m.onnx", "--inputs", "in.npz"],
    "run --export-specialized": ["run", "m.onnx", "--inputs", "in.npz", "--specialize", "1"],
    "bench --trace": ["bench", "m.onnx", "--inputs", "in.npz"],
    "groups --draw": ["groups", "m.onnx"],
}
READ = ("the model", "external data of the model", "the inputs")
OTHERS = {("-o", "the model"), ("groups --draw", "the inputs")}
"""What is allowed, that the result takes the place of the original, and what is not read."""


def _refused(ortopt: Any, option: str, what: str, name: str, read: dict[str, str]) -> None:
    before = {path: Path(path).read_bytes() for path in read.values()}
    there = _names()
    done = ortopt(*OUTPUTS[option], option.rpartition(" ")[2], name, code=1)
    assert f" would write over {what}: " in done.stderr
    assert done.stderr.count("\n") == 1
    assert {path: Path(path).read_bytes() for path in read.values()} == before
    assert _names() == there


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("what", READ)
def test_no_name_hides_that_a_file_is_read(
    ortopt: Any, inputs_of_a_run: dict[str, str], what: str, spelling: str
) -> None:
    name = SPELLINGS[spelling](inputs_of_a_run[what])
    _refused(ortopt, "optimize --json", what, name, inputs_of_a_run)


@pytest.mark.parametrize(("option", "what"), [(o, what) for o in OUTPUTS for what in READ if (o, what) not in OTHERS])
def test_no_output_takes_the_place_of_what_is_read(
    ortopt: Any, inputs_of_a_run: dict[str, str], option: str, what: str
) -> None:
    _refused(ortopt, option, what, inputs_of_a_run[what], inputs_of_a_run)


def test_a_dump_does_not_write_over_what_it_is_made_from(ortopt: Any, inputs_of_a_run: dict[str, str]) -> None:
    Path("dumps").mkdir()
    Path("dumps/0000-start.onnx").symlink_to("../m.onnx")
    before = Path("m.onnx").read_bytes()
    done = ortopt("optimize", "m.onnx", "--dump-dir", "dumps", code=1)
    assert done.stderr == "ortopt: --dump-dir would write over 'm.onnx', which is read\n"
    assert Path("m.onnx").read_bytes() == before
    assert _names("dumps") == ["0000-start.onnx"]
    Path("dumps/0000-start.onnx").unlink()
    ortopt("optimize", "m.onnx", "--dump-dir", "dumps", "--no-verify", "-o", "out.onnx")


@pytest.mark.parametrize("how", ["auto", "inline", "copy", "reuse"])
def test_nor_does_the_library_write_over_external_data(inputs_of_a_run: dict[str, str], how: Any) -> None:
    data = inputs_of_a_run["external data of the model"]
    before = Path(data).read_bytes()
    with pytest.raises(OutputError, match="it holds external data of the model"):
        save(load("m.onnx"), data, external_data=how)
    assert Path(data).read_bytes() == before
