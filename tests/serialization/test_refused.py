"""Models that are no models: each is refused in one line that says why, by the library and on the command line.

And those that look wrong, and run (accepted.txt).

The files below refused/ hold them: a title that is what the line must contain, up to `` / ``; the model in ONNX's text
form; and behind ``with:`` fields of onnx.proto, as protobuf writes them, that are merged into it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from google.protobuf import text_format

import ortopt
from ortopt.cli.group import commands
from ortopt.errors import InvalidModelError
from ortopt.serialization.load import load
from tests.sessions import unoptimized
from tests.texts import Case, read
from tests.whole_models.unverified import LEVELS, check_levels, loads

FOLDER = Path(__file__).parent / "refused"
ACCEPTED = read(FOLDER.with_name("accepted.txt"), ("with",))
FEEDS = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
HEADER = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "f": 1, "me": 1]>'
CASES = [(path.stem, case) for path in sorted(FOLDER.glob("*.txt")) for case in read(path, ("with",))]


def built(case: Case) -> onnx.ModelProto:
    text = case.body.replace("LONG", "n" * 100_000)
    if not text:
        model = onnx.ModelProto()
    else:
        model = onnx.parser.parse_model(text if text.startswith("<") else f"{HEADER} {text}")
    text_format.Merge(case.told.get("with", ""), model)
    return model


@pytest.mark.parametrize(("file", "case"), CASES, ids=lambda one: one.title if isinstance(one, Case) else one)
def test_refused(file: str, case: Case, tmp_path: Path) -> None:
    model = built(case)
    because = case.title.partition(" / ")[0]
    if file == "specification":
        assert not loads(model)
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(InvalidModelError) as caught:
        load(path)
    message = str(caught.value)
    assert because in message
    assert message.startswith(f"'{path}': ")
    assert message.isprintable()
    assert len(message) < 700
    for level in LEVELS:
        with pytest.raises(InvalidModelError):
            ortopt.optimize(model, level=level)
    for command in (("optimize", path), ("info", path), ("explain", path, "identity_elimination")):
        done = CliRunner().invoke(commands, [*map(str, command)])
        assert (done.exit_code, done.stdout, done.stderr) == (2, "", f"ortopt: {message}\n")
        assert [one.name for one in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.title)
def test_accepted(case: Case) -> None:
    model = built(case)
    feeds = {
        one.name: np.ones([size if isinstance(size, int) else 2 for size in one.shape], FEEDS[one.type])
        for one in unoptimized(model).get_inputs()
    }
    check_levels(model, feeds)
