"""Models of more than 2 GB: weights in sparse files, which cost neither disk nor memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.testing import assert_array_equal

from ortopt import InferenceSession
from ortopt.partition.partitioning import group
from ortopt.partition.settings import PartitionOptions
from ortopt.serialization.load import load
from ortopt.serialization.save import save
from tests.runtime.models import Twice
from tests.runtime.side_by_side import quiet
from tests.runtime.test_abuse import anonymous_megabytes

ROWS, COLUMNS = 300_000, 1024
"""Two tables of 1.2 GB each."""


def sparse_file(path: Path, nbytes: int, content: dict[int, Any]) -> None:
    """A file of zeros with some arrays at their places; the test is skipped where it would take the disk."""
    with path.open("wb") as file:
        file.truncate(nbytes)
        for place, array in content.items():
            file.seek(place)
            file.write(array.tobytes())
    if not hasattr(os.stat_result, "st_blocks") or path.stat().st_blocks * 512 > 1 << 26:
        pytest.skip("no sparse files here")


def large_model(folder: Path, *, shared: bool) -> Path:
    """Lookups in two tables, or twice in one, with an op of the user's between them: two groups."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : 17, "my" : 1]>
        main (int64[N] x) => (float[N,4] y) {{
            a = Gather ({"w" if shared else "v"}, x) b = MatMul (a, m) c = my.Twice (b)
            d = Gather (w, x) e = MatMul (d, m) y = Add (c, e) }}""")
    row = COLUMNS * 4
    one, other = (np.arange(COLUMNS, dtype=np.float32) + start for start in (1, 7))
    rows = {"w": 2 * ROWS} if shared else {"v": ROWS, "w": ROWS + 1}
    starts = {"v": 0, "w": 0 if shared else ROWS * row}
    content = {
        start + place * row: array
        for name in rows
        for start in (starts[name],)
        for place, array in ((5, one), (2 * ROWS - 1 if shared else ROWS - 1, other))
    }
    sparse_file(folder / "weights.bin", sum(rows.values()) * row, content)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(COLUMNS, 4, dtype=np.float32), "m"))
    for name, count in rows.items():
        tensor = model.graph.initializer.add(name=name, data_type=onnx.TensorProto.FLOAT, dims=[count, COLUMNS])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", starts[name]), ("length", count * row)):
            tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert (folder / "weights.bin").stat().st_size > 1 << 31
    return path


@pytest.mark.parametrize("shared", [False, True], ids=["two tables", "one table in two groups"])
@pytest.mark.parametrize("specialize", [None, 1], ids=["general", "specialised"])
def test_a_model_beyond_2_gb_is_grouped_without_copies(tmp_path: Path, shared: bool, specialize: int | None) -> None:
    path = large_model(tmp_path, shared=shared)
    last = (2 * ROWS if shared else ROWS) - 1
    gc.collect()
    before = anonymous_megabytes()
    options: Any = {"specialize_after": specialize, "cache_bytes": 1 << 33}
    with InferenceSession(path, providers=["cpu"], host_ops=[Twice], **options) as mine:
        assert len([group for group in mine.groups if group.wanted_provider != "host"]) == 2
        for _ in range(2):
            (found,) = mine.run(None, {"x": np.array([5, last, 0])})
        assert found[:, 0].tolist() == [3, 21, 0]
        assert found[0].tolist() == [3, 6, 9, 12]
        gc.collect()
        assert anonymous_megabytes() - before < 64
        silent = onnxruntime.RunOptions()
        silent.log_severity_level = 4
        with pytest.raises(Exception, match="out of data bounds"):
            mine.run(None, {"x": np.array([last + 2])}, silent)
        assert_array_equal(mine.run(None, {"x": np.zeros(0, np.int64)})[0], np.zeros((0, 4), np.float32))
        if specialize:
            written = mine.export_specialized(tmp_path / "special.onnx", external_data="reuse")
            assert Path(written.path).stat().st_size < 1 << 20
    if specialize:
        with InferenceSession(tmp_path / "special.onnx", providers=["cpu"], host_ops=[Twice]) as again:
            assert again.run(None, {"x": np.array([5, last, 0])})[0][:, 0].tolist() == [3, 21, 0]
            assert again.statistics.specialized_runs == 1
            gc.collect()
            assert anonymous_megabytes() - before < 64
    gc.collect()
    assert anonymous_megabytes() - before < 64


@pytest.mark.parametrize("shared", [False, True], ids=["two tables", "one table in two groups"])
def test_a_grouped_file_beyond_2_gb_runs_anywhere_without_copies(tmp_path: Path, shared: bool) -> None:
    """Written, it is read by ONNX Runtime as any model, which maps each table once; so does a session of groups."""
    path = large_model(tmp_path, shared=shared)
    proto = onnx.load(path, load_external_data=False)
    (custom,) = (node for node in proto.graph.node if node.domain)
    custom.op_type, custom.domain = "Neg", ""
    path.write_bytes(proto.SerializeToString())
    last = (2 * ROWS if shared else ROWS) - 1
    gc.collect()
    before = anonymous_megabytes()
    model = load(path)
    found = group(model, PartitionOptions(deny=("Neg",), policy="literal"))
    tables = [[value.name for value in one.weight_inputs if value.name in ("v", "w")] for one in found]
    assert tables == ([["w"], ["w"]] if shared else [["v"], ["w"]])
    written = save(model, tmp_path / "grouped.onnx", external_data="reuse")
    assert sum(one.stat().st_size for one in tmp_path.iterdir() if one.name != "weights.bin") < 1 << 20
    assert anonymous_megabytes() - before < 64

    def grouped() -> Any:
        made = InferenceSession(written.path, quiet(), providers=["cpu"])
        assert [one.wanted_provider for one in made.groups].count("host") == 0
        return made

    def plain() -> Any:
        return onnxruntime.InferenceSession(written.path, quiet(), providers=["CPUExecutionProvider"])

    for make in (grouped, plain):
        runs = make()
        assert runs.run(None, {"x": np.array([5, last, 0])})[0][:2].tolist() == [[0] * 4, [0] * 4]  # -a + a
        gc.collect()
        assert anonymous_megabytes() - before < 64, make.__name__
        del runs
    again = load(written.path)
    assert len(group(again)) == 2
    assert anonymous_megabytes() - before < 64
