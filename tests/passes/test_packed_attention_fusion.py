"""An attention whose queries, keys and values are projections of one value becomes one with packed weights."""

from tests.passes import example_files
from tests.passes.sessions import passed

PASS = "packed_attention_fusion"


def test_the_weights_only_move() -> None:
    result = passed(PASS, example_files.text(PASS, "packs / 1"))
    assert sum(value.const_value.nbytes for value in result.graph.initializers.values()) == 4 * 3 * (6 * 8 + 8)
