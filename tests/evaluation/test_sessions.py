"""Sessions of ONNX Runtime as ortopt makes them."""

import numpy as np
import onnx
import pytest

from ortopt.errors import UsageError
from ortopt.evaluation.sessions import session
from ortopt.serialization.scan import count_nodes


def test_sessions_of_big_graphs_turn_the_planner_off():
    body = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(2_500))
    text = f'<ir_version: 9, opset_import: ["": 17]> main (float[1] v0) => (float[1] v2500) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    assert count_nodes(proto.SerializeToString()) == 2_500
    made = session(proto.SerializeToString(), threads=1)
    assert not made.get_session_options().enable_mem_reuse
    assert made.run(None, {"v0": np.array([-1], np.float32)})[0].tolist() == [0]


@pytest.mark.parametrize("junk", [b"", b"\x00", b"\xff" * 100, b":\x05ab", b"a" * 1000])
def test_counting_nodes_survives_junk(junk):
    assert count_nodes(junk) == 0


def test_a_provider_that_does_not_work_is_an_error():
    with pytest.raises(UsageError, match="does not work here"):
        session(b"", providers=["DmlExecutionProvider"])
