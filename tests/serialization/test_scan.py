"""Questions about a model that its bytes answer: how many nodes, whether there are groups; junk answers no."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

from ortopt.semantics import GROUP_DOMAIN
from ortopt.serialization.scan import count_nodes, mentions_groups
from tests.serialization import models

JUNK = [b"", b"\x00", b"\xff" * 100, b":\x05ab", b"a" * 1000]


def grouped() -> onnx.ModelProto:
    proto = models.weights()
    function = proto.functions.add()
    function.domain, function.name = GROUP_DOMAIN, "group"
    function.opset_import.append(helper.make_opsetid("", 17))
    return proto


def test_nodes_of_the_main_graph_are_counted(tmp_path: Path) -> None:
    proto = models.weights()
    path = tmp_path / "a.onnx"
    onnx.save(proto, path)
    assert count_nodes(proto.SerializeToString()) == count_nodes(path) == len(proto.graph.node) > 0


@pytest.mark.parametrize("junk", JUNK)
def test_counting_nodes_survives_junk(junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "junk.onnx"
    path.write_bytes(junk)
    assert count_nodes(junk) == count_nodes(path) == count_nodes(tmp_path / "missing.onnx") == 0


def test_a_graph_that_is_cut_short_has_no_nodes() -> None:
    data = models.weights().SerializeToString()
    assert count_nodes(data[: len(data) // 2]) == 0


@pytest.mark.parametrize("make", [models.weights, grouped])
def test_groups_are_found_in_every_form_of_a_model(make: object, tmp_path: Path) -> None:
    proto = make()  # type: ignore[operator]
    path = tmp_path / "a.onnx"
    onnx.save(proto, path)
    expected = make is grouped
    for source in (proto, proto.SerializeToString(), path, str(path), ir.serde.deserialize_model(proto)):
        assert mentions_groups(source) is expected


@pytest.mark.parametrize("junk", JUNK)
def test_junk_has_no_groups(junk: bytes, tmp_path: Path) -> None:
    path = tmp_path / "junk.onnx"
    path.write_bytes(junk)
    assert not mentions_groups(junk)
    assert not mentions_groups(path)
    assert not mentions_groups(tmp_path / "missing.onnx")
