"""What ``ORTOPT_DUMP_GROUPS`` and ``debug`` write: models that the checker takes and ONNX Runtime loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference.op_run import OpRun

from ortopt import VerificationError, zoo
from ortopt.analysis.providers import CPU
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.load import load
from tests.runtime.models import HEADER, TWO_GROUPS, WITH_SHAPE, Twice, floats, session
from tests.runtime.side_by_side import quiet

NEGATION = '<domain: "ortopt.group", opset_import: ["" : 17]> group_0 (p) => (r) { r = Neg (p) }'
TEXTS = {
    "two groups": TWO_GROUPS,
    "unknown rank": WITH_SHAPE,
    "unknown types": f"{HEADER} main (float[N,4] x) => (y) {{ t = my.Twice (x) u = ortopt.group.group_0 (t)"
    f" y = my.Twice (u) }} {NEGATION}",
    "unknown types of several nodes": f"{HEADER} main (float[N,4] x) => (y, z) {{ t = my.Twice (x)"
    f" s = Shape (t) f = Flatten (t) g = ortopt.group.group_0 (f) y = Sum (g, f) z = Identity (s) }} {NEGATION}",
    "sequences": f"{HEADER} main (float[N,4] x) => (float[M,4] y) {{ n = ortopt.group.group_0 (x)"
    f" s = SequenceConstruct (n, x) t = my.Twice (x) u = SequenceInsert (s, t)"
    f" y = ConcatFromSequence <axis = 0> (u) }} {NEGATION}",
    "a branch": f"{HEADER} main (float[N,4] x, bool c) => (float[N,4] y) <float[1] w = {{2}}> {{"
    f" t = my.Twice (x) y = If (c) <then_branch = a () => (p) {{ p = Mul (t, w) }},"
    f" else_branch = b () => (q) {{ q = Neg (x) }}> }} {NEGATION}",
    "constants as outputs": f"{HEADER} main (float[N,4] x) => (float[N,4] y, int64[1] z) <int64[1] w = {{2}}> {{"
    f" y = ortopt.group.group_0 (x) z = Identity (w) }} {NEGATION}",
    "strings": f"{HEADER} main (float[N,4] x) => (string[N,4] y) {{ t = my.Twice (x) u = ortopt.group.group_0 (t)"
    f" y = Cast <to = 8> (u) }} {NEGATION}",
}


def check(path: Path, *, loads: bool) -> onnx.ModelProto:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    for value in (*model.graph.input, *model.graph.output):
        assert value.type.WhichOneof("value") is not None, value
    if loads:
        onnxruntime.InferenceSession(model.SerializeToString(), quiet(), providers=[CPU])
    return model


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_dumped_groups_load_and_check(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTOPT_DUMP_GROUPS", "1")
    mine = session(text, dump_folder=tmp_path, host_ops=[Twice])
    feeds: dict[str, Any] = {"x": floats(2, 4), "shape": np.array([4, 2]), "c": np.array(True)}
    mine.run(None, {one.name: feeds[one.name] for one in mine.get_inputs()})
    written = sorted(tmp_path.glob("*.onnx"))
    assert len(written) == len(mine.groups)
    for path in written:
        text_of = onnx.load(path)
        check(path, loads=not any(node.domain == "my" for node in text_of.graph.node))


def test_dumped_groups_have_shapes_that_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTOPT_DUMP_GROUPS", "1")
    session(TWO_GROUPS, dump_folder=tmp_path).run(None, {"x": floats(2, 4)})
    model = check(tmp_path / "group_1.onnx", loads=True)
    for value in (*model.graph.input, *model.graph.output):
        assert [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] == ["N", 4]
    unknown = tmp_path / "unknown"
    session(TEXTS["unknown rank"], dump_folder=unknown).run(None, {"x": floats(2, 4), "shape": np.array([2, 2, 2])})
    (given,) = check(unknown / "group_1.onnx", loads=True).graph.output
    assert len(given.type.tensor_type.shape.dim) == 3  # what only the run knew


def test_dumped_groups_of_several_types_are_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Given(OpRun):
        op_domain = "my"

        def _run(self, x: Any) -> tuple[Any, ...]:
            return (x if x.size > 4 else x.astype(np.float64),)

    monkeypatch.setenv("ORTOPT_DUMP_GROUPS", "1")
    text = f"{HEADER} main (float[N,4] x) => (y) {{ t = my.Given (x) y = ortopt.group.group_0 (t) }} {NEGATION}"
    mine = session(text, dump_folder=tmp_path, host_ops=[Given])
    for rows in (1, 2):
        mine.run(None, {"x": floats(rows, 4)})
    models = [check(tmp_path / name, loads=True) for name in ("group_0.onnx", "group_0-1.onnx")]
    kinds = [[one.type.tensor_type.elem_type for one in (*m.graph.input, *m.graph.output)] for m in models]
    assert kinds == [[11, 11], [1, 1]]


def test_dumped_groups_that_failed_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they are compiled: that may be what somebody wants to look into."""
    monkeypatch.setenv("ORTOPT_DUMP_GROUPS", "1")
    mine = session(WITH_SHAPE, dump_folder=tmp_path)
    with pytest.raises(Exception, match=r"(?i)reshape"):
        mine.run(None, {"x": floats(2, 4), "shape": np.array([3, 3])})
    assert onnx.load(tmp_path / "group_1.onnx").graph.node


@pytest.mark.parametrize("name", ["lstm_tagger__ts13", "control_flow__script17", "resnet18_qdq__qdq"])
def test_dumped_groups_of_real_models(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORTOPT_DUMP_GROUPS", "1")
    model = load(zoo.cached(name))
    group(model, PartitionOptions(deny=("Add", "Relu", "LSTM", "Loop")))
    mine = session(model, dump_folder=tmp_path)
    mine.run(None, dict(zoo.inputs(name)))
    written = list(tmp_path.glob("*.onnx"))
    assert written
    for path in written:
        check(path, loads=True)


def test_the_reproducer_of_debug_loads_and_checks(tmp_path: Path) -> None:
    class Wrong(OpRun):
        op_domain = ""

        def _run(self, x: Any, y: Any) -> tuple[Any, ...]:
            return (x * y + 1,)

    Wrong.__name__ = "Mul"
    body = "t = my.Twice (x) g = ortopt.group.group_0 (t) y = Mul (g, t)"
    text = f"{HEADER} main (float[N,4] x) => (y) {{ {body} }} {NEGATION}"
    mine = session(text, run_type="debug", host_ops=[Twice, Wrong], dump_folder=tmp_path)
    with pytest.raises(VerificationError, match="differs"):
        mine.run(None, {"x": floats(2, 4)})
    (path,) = tmp_path.glob("*-differs/group.onnx")
    model = check(path, loads=True)
    shapes = [[dim.dim_param or dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in model.graph.input]
    assert [len(shape) for shape in shapes] == [2, 2]
    with np.load(path.parent / "values.npz") as stored:
        feeds = {one.name: stored[f"input.{one.name}"] for one in model.graph.input}
        right = onnxruntime.InferenceSession(path, quiet(), providers=[CPU]).run(None, feeds)[0]
        assert np.allclose(right + 1, stored[f"output.{model.graph.output[0].name}"])
