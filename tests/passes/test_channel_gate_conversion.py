"""A gate of one number a channel becomes an image of that number, where convolutions stand around it."""

from __future__ import annotations

from pathlib import Path

import onnx

import ortopt
from ortopt.testing import parse
from tests.passes import example_files

PASS = "channel_gate_conversion"


def test_the_file_declares_the_product_and_a_second_run_too(tmp_path: Path) -> None:
    """ONNX Runtime infers nothing of the batch behind a Resize: sums that follow would leave the blocked layout."""
    again = parse(example_files.text(PASS, "an image of the gate / a batch of any size"))
    for name in ("first.onnx", "second.onnx"):
        ortopt.optimize(again, passes=PASS, verify=False).save(tmp_path / name)
        again = tmp_path / name
        declared = {value.name: value.type.tensor_type.shape.dim for value in onnx.load(again).graph.value_info}
        assert len(declared) == 2
        assert "m" in declared
        for dims in declared.values():
            assert dims[0].dim_param == "N"
            assert [dim.dim_value for dim in dims][1:] == [16, 3, 5]
