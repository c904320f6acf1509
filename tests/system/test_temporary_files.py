"""Where temporary files have no room, that is one line; nothing is written that was not verified."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ortopt import optimize
from ortopt.errors import OutputError
from ortopt.evaluation.raw_tensors import save_array
from ortopt.system.files import is_lack_of_room, room_errors, temporary_folder

MODEL = """<ir_version: 9, opset_import: ["" : 20]>
    main (float[N,64] x) => (float[M,64] y) { a = Identity (x) b = Concat <axis = 0> (a, a, a, a) y = Neg (b) }"""


@pytest.mark.skipif(sys.platform == "win32", reason="a limit on the size of files")
@pytest.mark.parametrize(("limit", "where"), [(300, "inputs"), (1200, "outputs")])
@pytest.mark.parametrize("command", ["optimize", "verify"])
def test_verification_without_room_is_one_line(tmp_path: Path, command: str, limit: int, where: str) -> None:
    import resource

    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "a.onnx")
    more = {"optimize": ["-o", "b.onnx"], "verify": ["a.onnx"]}[command]
    done = subprocess.run(
        [sys.executable, "-m", "ortopt", command, "a.onnx", *more],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 2, (where, done.stderr)
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("ortopt: cannot write temporary files: ")
    assert [one.name for one in tmp_path.iterdir()] == ["a.onnx"]


def test_without_a_folder_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(OutputError, match="cannot write temporary files"):
        optimize(onnx.parser.parse_model(MODEL))
    assert optimize(onnx.parser.parse_model(MODEL), verify=False).model.graph.outputs[0].name == "y"


def test_arrays_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    arrays: list[Any] = [np.zeros((2, 0, 3), np.int8), np.float32(2), np.asfortranarray(np.arange(6.0).reshape(2, 3))]
    arrays += [np.arange(24, dtype=np.float16).reshape(2, 3, 4)[:, ::-1, 1:], np.array([True, False]), np.ones(2, "c8")]
    for array in arrays:
        save_array(tmp_path / "a.npy", array)
        for mode in (None, "r"):
            found = np.load(tmp_path / "a.npy", mode)
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found, array)
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match="No space"):
            save_array(Path("/dev/full"), np.ones(9))


def test_what_is_no_lack_of_room_is_not_called_one() -> None:
    assert is_lack_of_room(OSError("8 requested and 2 written"))
    with temporary_folder("ortopt-test-") as name, pytest.raises(FileNotFoundError), room_errors(name):
        Path(name, "nothing").read_bytes()
    with pytest.raises(OutputError, match="No space"), temporary_folder("ortopt-test-"):
        raise OSError(errno.ENOSPC, "No space left on device")
