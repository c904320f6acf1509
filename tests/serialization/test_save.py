"""Saving: whole or not at all, weights streamed, external data named by content, the same bytes each time."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from ortopt.errors import OutputError
from ortopt.graph.symbolic import INVENTED
from ortopt.serialization import data_file, output_files
from ortopt.serialization import save as saving
from ortopt.serialization.load import load
from ortopt.serialization.mapped_tensors import MappedTensor
from ortopt.serialization.save import Saved, save, to_bytes
from tests.serialization import models


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "m.onnx"
    path.parent.mkdir()
    path.write_bytes(models.canonical(models.weights()).SerializeToString())
    return path


def contents(path: Path) -> onnx.ModelProto:
    """What a stranger reads: onnx, with external data."""
    return models.canonical(onnx.load(path))


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_inline_weights_stay_inline(source: Path, tmp_path: Path) -> None:
    saved = save(load(source), tmp_path / "out.onnx")
    assert saved == Saved(tmp_path / "out.onnx", (tmp_path / "out.onnx").stat().st_size, None)
    assert onnx.load(tmp_path / "out.onnx") == onnx.load(source)
    assert names(tmp_path) == ["in", "out.onnx"]


def test_all_ways_out_give_the_same_bytes(source: Path, tmp_path: Path) -> None:
    save(load(source), tmp_path / "out.onnx")
    stream = io.BytesIO()
    assert save(load(source), stream).path is None
    with (tmp_path / "file").open("wb") as file:
        save(load(source), file)
    assert {stream.getvalue(), to_bytes(load(source)), (tmp_path / "file").read_bytes()} == {
        (tmp_path / "out.onnx").read_bytes()
    }


def test_the_same_bytes_in_any_process(source: Path) -> None:
    script = (
        "import hashlib, sys; from ortopt.serialization.load import load\n"
        "from ortopt.serialization.save import to_bytes\n"
        "print(hashlib.sha256(to_bytes(load(sys.argv[1]))).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", script, source],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_external_data_are_named_by_their_content(source: Path, tmp_path: Path) -> None:
    saved = save(load(source), tmp_path / "out.onnx", external_data="copy")
    assert saved.data_path is not None
    digest = hashlib.sha256(saved.data_path.read_bytes()).hexdigest()
    assert saved.data_path.name == f"out.{digest[:16]}.data"
    assert saved.nbytes == saved.data_path.stat().st_size + (tmp_path / "out.onnx").stat().st_size
    raw = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert raw.graph.initializer[0].data_location == onnx.TensorProto.EXTERNAL
    assert raw.graph.node[1].attribute[0].t.data_location == onnx.TensorProto.DEFAULT
    assert np.array_equal(numpy_helper.to_array(contents(tmp_path / "out.onnx").graph.initializer[0]), models.WEIGHT)
    assert to_bytes(load(tmp_path / "out.onnx")) == to_bytes(load(source))


def test_a_model_with_external_data_keeps_them_and_stays_where_it_is(source: Path, tmp_path: Path) -> None:
    save(load(source), tmp_path / "a.onnx", external_data="copy")
    saved = save(load(tmp_path / "a.onnx"), tmp_path / "b.onnx")
    assert saved.data_path is not None
    assert saved.data_path.name.startswith("b.")
    again = save(load(tmp_path / "b.onnx"), tmp_path / "b.onnx")
    assert again == saved
    assert to_bytes(load(tmp_path / "b.onnx")) == to_bytes(load(source))
    assert save(load(tmp_path / "b.onnx"), tmp_path / "c.onnx", external_data="inline").data_path is None
    assert onnx.load(tmp_path / "c.onnx") == onnx.load(source)


def test_reuse_copies_nothing(source: Path, tmp_path: Path) -> None:
    first = save(load(source), tmp_path / "a.onnx", external_data="copy")
    loaded = load(tmp_path / "a.onnx")
    changed = loaded.graph.initializers["w"]
    changed.const_value = ir.tensor(models.WEIGHT * 3, name="w")
    saved = save(loaded, tmp_path / "b.onnx", external_data="reuse")
    assert saved.data_path is not None
    assert saved.data_path.stat().st_size == models.WEIGHT.nbytes
    assert first.data_path is not None
    assert first.data_path.exists()
    result = load(tmp_path / "b.onnx")
    assert np.array_equal(result.graph.initializers["w"].const_value.numpy(), models.WEIGHT * 3)
    branch = result.graph[4].attributes["else_branch"].as_graph()
    assert np.array_equal(branch.initializers["v"].const_value.numpy(), models.WEIGHT + 1)


def test_reuse_over_the_input_deletes_nothing(source: Path, tmp_path: Path) -> None:
    first = save(load(source), tmp_path / "a.onnx", external_data="copy")
    (tmp_path / "a.0123456789abcdef.data").write_bytes(b"old")
    second = save(load(tmp_path / "a.onnx"), tmp_path / "a.onnx", external_data="reuse")
    assert second.data_path is None
    assert first.data_path is not None
    assert names(tmp_path) == ["a.0123456789abcdef.data", first.data_path.name, "a.onnx", "in"]
    assert to_bytes(load(tmp_path / "a.onnx")) == to_bytes(load(source))


def test_reuse_elsewhere_or_of_what_was_replaced_is_refused(source: Path, tmp_path: Path) -> None:
    first = save(load(source), tmp_path / "a.onnx", external_data="copy")
    loaded = load(tmp_path / "a.onnx")
    (tmp_path / "other").mkdir()
    with pytest.raises(OutputError, match="not below the output's folder"):
        save(loaded, tmp_path / "other" / "b.onnx", external_data="reuse")
    assert first.data_path is not None
    first.data_path.unlink()
    with pytest.raises(OutputError, match="replaced or changed"):
        save(loaded, tmp_path / "b.onnx", external_data="reuse")
    assert save(loaded, tmp_path / "b.onnx", external_data="copy").data_path is not None


def test_old_data_go_with_a_later_run_when_nobody_refers_to_them(source: Path, tmp_path: Path) -> None:
    loaded = load(source)
    out = tmp_path / "a.onnx"
    paths = []
    for factor in (1, 2, 3):
        loaded.graph.initializers["w"].const_value = ir.tensor(models.WEIGHT * factor, name="w")
        saved = save(loaded, out, external_data="copy")
        assert saved.data_path is not None
        paths.append(saved.data_path)
        (tmp_path / "a.notours.data").touch()
        (tmp_path / "b.0123456789abcdef.data").touch()
    assert [path.exists() for path in paths] == [False, True, True]
    assert (tmp_path / "a.notours.data").exists()
    assert (tmp_path / "b.0123456789abcdef.data").exists()


def test_data_that_another_model_refers_to_stay(source: Path, tmp_path: Path) -> None:
    loaded = load(source)
    first = save(loaded, tmp_path / "a.onnx", external_data="copy").data_path
    assert first is not None
    save(load(tmp_path / "a.onnx"), tmp_path / "friend.onnx", external_data="reuse")
    for factor in (2, 3):
        loaded.graph.initializers["w"].const_value = ir.tensor(models.WEIGHT * factor, name="w")
        save(loaded, tmp_path / "a.onnx", external_data="copy")
    assert first.exists()
    assert load(tmp_path / "friend.onnx")


class Killed(BaseException):
    """Stands for the end of the process."""


STEPS: dict[str, tuple[Any, str]] = {
    "while the data are written": (data_file.DataLayout, "write"),
    "before the data have their name": (output_files.TemporaryOutput, "rename"),
    "while the model is written": (saving, "_write"),
    "when the folder is flushed": (output_files, "_flush_folder"),
    "while old data are removed": (saving, "remove_old_data"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("calls", [0, 1])
def test_killed_anywhere_the_output_is_wholly_old_or_new(
    step: str, calls: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.onnx"
    loaded = load(source)
    save(loaded, out, external_data="copy")
    old = to_bytes(load(out))
    loaded.graph.initializers["w"].const_value = ir.tensor(models.WEIGHT * 2, name="w")
    new = to_bytes(loaded)
    owner, name = STEPS[step]
    original: Callable[..., Any] = getattr(owner, name)
    left = [calls]

    def dying(*arguments: Any, **options: Any) -> Any:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, dying)
    monkeypatch.setattr(
        output_files.TemporaryOutput, "__exit__", lambda self, *_: self.stream.close()
    )  # nobody cleans up
    with contextlib.suppress(Killed):
        save(loaded, out, external_data="copy")
    monkeypatch.undo()
    assert to_bytes(load(out)) in {old, new}
    save(loaded, out, external_data="copy")
    assert to_bytes(load(out)) == new
    assert not [name for name in names(tmp_path) if name.endswith(".tmp")]


def test_a_failed_write_leaves_nothing(source: Path, tmp_path: Path) -> None:
    class Broken(ir.LazyTensor):
        def tobytes(self) -> bytes:
            raise OSError(28, "No space left on device")

    loaded = load(source)
    tensor = Broken(lambda: None, dtype=ir.DataType.FLOAT, shape=ir.Shape([64, 64]), name="w")
    loaded.graph.initializers["w"].const_value = tensor
    (tmp_path / "out.onnx").write_bytes(b"before")
    for way in ("inline", "copy"):
        with pytest.raises(OutputError, match=r"out.onnx': No space left on device"):
            save(loaded, tmp_path / "out.onnx", external_data=way)  # type: ignore[arg-type]
    assert (tmp_path / "out.onnx").read_bytes() == b"before"
    assert names(tmp_path) == ["in", "out.onnx"]


def test_temporary_files_of_others_who_still_write_stay(source: Path, tmp_path: Path) -> None:
    if output_files.fcntl is None:
        pytest.skip("needs file locks")
    stray = tmp_path / ".ortopt-0123456789abcdef.tmp"
    stray.touch()
    with output_files.TemporaryOutput(tmp_path) as other:
        save(load(source), tmp_path / "out.onnx")
        assert other.path.exists()
    assert not stray.exists()
    assert names(tmp_path) == ["in", "out.onnx"]


def test_plain_ir_save_elsewhere_after_the_original_is_deleted(source: Path, tmp_path: Path) -> None:
    expected = contents(source)
    loaded = load(source)
    source.unlink()
    ir.save(loaded, tmp_path / "inline.onnx")
    ir.save(loaded, tmp_path / "external.onnx", external_data="external.data")
    for name in ("inline", "external"):
        result = contents(tmp_path / f"{name}.onnx")
        assert numpy_helper.to_array(result.graph.initializer[0]).tobytes() == models.WEIGHT.tobytes()
        assert len(result.SerializeToString()) == pytest.approx(len(expected.SerializeToString()), abs=500)


def test_plain_ir_save_over_the_original(source: Path, tmp_path: Path) -> None:
    save(load(source), tmp_path / "ext.onnx", external_data="copy")
    for path in (source, tmp_path / "ext.onnx"):
        ir.save(load(path), path)
        assert numpy_helper.to_array(contents(path).graph.initializer[0]).tobytes() == models.WEIGHT.tobytes()
    saved = save(load(source), tmp_path / "ext.onnx", external_data="copy")
    assert saved.data_path is not None
    ir.save(load(tmp_path / "ext.onnx"), tmp_path / "ext.onnx", external_data=saved.data_path.name)
    assert np.array_equal(numpy_helper.to_array(contents(tmp_path / "ext.onnx").graph.initializer[0]), models.WEIGHT)


def test_places_that_cannot_be_written(source: Path, tmp_path: Path) -> None:
    loaded = load(source)
    with pytest.raises(OutputError, match="is a directory"):
        save(loaded, tmp_path)
    with pytest.raises(OutputError, match="there is no folder"):
        save(loaded, tmp_path / "none" / "out.onnx")
    with pytest.raises(OutputError, match="beside a stream"):
        save(loaded, io.BytesIO(), external_data="copy")


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="needs a device")
def test_devices_are_written_to_and_not_replaced(source: Path) -> None:
    before = Path("/dev/null").stat()
    save(load(source), "/dev/null")
    assert Path("/dev/null").stat().st_rdev == before.st_rdev


def test_beyond_2_gb(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "INLINE_LIMIT", 30_000)
    monkeypatch.setattr(saving, "_MARGIN", 0)
    loaded = load(source)
    for write in (lambda: to_bytes(loaded), lambda: save(loaded, tmp_path / "out.onnx", external_data="inline")):
        with pytest.raises(OutputError, match="2 GB"):
            write()
    saved = save(loaded, tmp_path / "out.onnx")
    assert saved.data_path is not None
    raw = onnx.load(tmp_path / "out.onnx", load_external_data=False)
    assert raw.graph.node[1].attribute[0].t.data_location == onnx.TensorProto.EXTERNAL
    monkeypatch.undo()
    assert to_bytes(load(tmp_path / "out.onnx")) == to_bytes(load(source))


def test_large_tensors_lie_on_pages(tmp_path: Path) -> None:
    arrays = [np.arange(size, dtype=np.uint8) for size in (1500, 2 << 20, 1501, 1 << 20)]
    tensors = [numpy_helper.from_array(array, f"w{index}") for index, array in enumerate(arrays)]
    proto = models.model([helper.make_node("Identity", ["x"], ["y"])], initializer=tensors)
    save(load(proto), tmp_path / "out.onnx", external_data="copy")
    offsets = [
        int(next(entry.value for entry in tensor.external_data if entry.key == "offset"))
        for tensor in onnx.load(tmp_path / "out.onnx", load_external_data=False).graph.initializer
    ]
    assert [offset % 16 for offset in offsets] == [0] * 4
    assert [offsets[1] % 4096, offsets[3] % 4096] == [0, 0]


def test_what_is_shared_is_written_once(tmp_path: Path) -> None:
    shared = ir.tensor(models.WEIGHT, name="w")
    loaded = load(models.model([helper.make_node("Identity", ["x"], ["y"])]))
    for name in ("a", "b"):
        loaded.graph.register_initializer(ir.Value(name=name, const_value=shared))
    saved = save(loaded, tmp_path / "out.onnx", external_data="copy")
    assert saved.data_path is not None
    assert saved.data_path.stat().st_size == models.WEIGHT.nbytes
    again = load(tmp_path / "out.onnx")
    tensors = [value.const_value for value in again.graph.initializers.values()]
    assert [tensor.name for tensor in tensors if tensor] == ["a", "b"]
    assert save(again, tmp_path / "two.onnx").nbytes == saved.nbytes


def test_invented_dimensions_are_written_as_unknown() -> None:
    loaded = load(models.text("g (float[N,2] x) => (float[N,M,2] y) { y = Foo(x) }"))
    loaded.graph.outputs[0].shape = ir.Shape(["N", f"2*{INVENTED}3", f"{INVENTED}4"])
    dims = onnx.load_from_string(to_bytes(loaded)).graph.output[0].type.tensor_type.shape.dim
    assert [dim.WhichOneof("value") for dim in dims] == ["dim_param", None, None]


def test_before_ir_4_initializers_are_inputs_too() -> None:
    loaded = load(models.text("g (float[2] x) => (float[2] y) { y = Neg(x) }", ir_version=3, opset=8))
    loaded.graph.register_initializer(ir.Value(name="w", const_value=ir.tensor(np.float32([1]), name="w")))
    loaded.graph.initializers["w"].dtype = ir.DataType.FLOAT
    loaded.graph.initializers["w"].shape = ir.Shape([1])
    result = onnx.load_from_string(to_bytes(loaded))
    assert [value.name for value in result.graph.input] == ["x", "w"]
    assert result.ir_version == 3
    onnx.checker.check_model(result)


def test_types_of_intermediate_values_are_told_if_the_input_told_them() -> None:
    proto = models.text("g (float[2] x) => (float[2] y) { t = Neg(x) y = Abs(t) }")
    for told in (False, True):
        loaded = load(proto)
        loaded.graph[0].outputs[0].shape = ir.Shape([2])
        loaded.graph[0].outputs[0].dtype = ir.DataType.FLOAT
        assert bool(onnx.load_from_string(to_bytes(loaded)).graph.value_info) == told
        proto.graph.value_info.append(helper.make_tensor_value_info("t", 1, [2]))


def test_types_told_in_a_nested_graph_only() -> None:
    proto = models.text("""g (bool c, float[2] x) => (float[2] y) { y = If (c) <
        then_branch = t () => (float[2] a) <float[2] s> { s = Neg (x) a = Abs (s) },
        else_branch = e () => (float[2] b) { b = Neg (x) }> }""")
    assert not proto.graph.value_info
    again = onnx.load_from_string(to_bytes(load(proto)))
    told = {attribute.name: attribute.g.value_info for attribute in again.graph.node[0].attribute}
    assert [info.name for info in told["then_branch"]] == ["s"]


def test_provenance_is_told_on_request_only() -> None:
    loaded = load(models.text("g (float[2] x) => (float[2] y) { y = Neg(x) }", ir_version=10))
    loaded.graph[0].meta["ortopt.pass"] = "some_fusion"
    loaded.graph[0].meta["ortopt.origin"] = tuple(f"n{index}" for index in range(11))
    assert not onnx.load_from_string(to_bytes(loaded)).graph.node[0].metadata_props
    entries = onnx.load_from_string(to_bytes(loaded, provenance=True)).graph.node[0].metadata_props
    assert [(entry.key, entry.value) for entry in entries] == [
        ("ortopt.origin", "n0, n1, n2, n3, n4, n5, n6, n7, … (11 in all)"),
        ("ortopt.pass", "some_fusion"),
    ]
    loaded.ir_version = 8
    with pytest.raises(OutputError, match="IR version 10"):
        to_bytes(loaded, provenance=True)


def test_broken_models_are_not_written(source: Path, tmp_path: Path) -> None:
    loaded = load(source)
    loaded.graph.initializers["w"].const_value = None
    with pytest.raises(OutputError, match="'w' has no data"):
        save(loaded, tmp_path / "out.onnx")
    assert names(tmp_path) == ["in"]


def test_a_tensor_that_promised_more_than_it_has_is_refused(tmp_path: Path) -> None:
    loaded = load(models.weights())
    wrong = ir.LazyTensor(
        lambda: ir.tensor(np.zeros(3, np.float32)), dtype=ir.DataType.FLOAT, shape=ir.Shape([64, 64]), name="w"
    )
    loaded.graph.initializers["w"].const_value = wrong
    with pytest.raises(OutputError, match="12 bytes and promised 16384"):
        save(loaded, tmp_path / "out.onnx")
    assert not names(tmp_path)


def test_the_mode_of_a_replaced_file_stays(source: Path) -> None:
    source.chmod(0o640)
    save(load(source), source)
    assert source.stat().st_mode & 0o777 == 0o640


def test_a_link_is_replaced_and_what_it_led_to_stays(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link.onnx").symlink_to(source)
    before = source.read_bytes()
    loaded = load(tmp_path / "link.onnx")
    loaded.doc_string = "changed"
    save(loaded, tmp_path / "link.onnx")
    assert not (tmp_path / "link.onnx").is_symlink()
    assert source.read_bytes() == before


def test_tensors_are_still_views_after_saving_over_their_file(source: Path) -> None:
    loaded = load(source)
    save(loaded, source)
    tensor = loaded.graph.initializers["w"].const_value
    assert isinstance(tensor, MappedTensor)
    assert np.array_equal(tensor.numpy(), models.WEIGHT)
