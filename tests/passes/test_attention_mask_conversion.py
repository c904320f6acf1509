"""A floor under masks is an approximation: verification finds scores for which a masked key would count."""

from __future__ import annotations

import numpy as np
import pytest

from ortopt import api
from ortopt.testing import parse
from tests.releases import since

PASS = "attention_mask_conversion"
TEXT = """main (float[1,1,2,8] q, float[1,1,2,8] k, float[1,1,2,8] v, bool[1,1,2,2] c) => (float[1,1,2,8] y)
    <float z = {0}, float n = {-10000}> { m = Where (c, z, n) y = Attention (q, k, v, m) }"""


@pytest.mark.parametrize(("masked", "floors"), [(20.0, 1), (200.0, 0)])
@since(1, 23, "the kernel of Attention")
def test_a_masked_key_that_would_count_is_found(masked: float, floors: int) -> None:
    """The score of a masked key is above that of the other one: by 20 it adds e^-44, by 200 all there is."""
    ones = np.ones((1, 1, 2, 8), np.float32)
    keys = np.zeros_like(ones)
    keys[0, 0, 1] = masked / np.sqrt(8)
    inputs = {"q": ones, "k": keys, "v": keys + np.arange(8, dtype=np.float32), "c": np.array([[[[True, False]] * 2]])}
    done = api.optimize(parse(TEXT, 23), level=3, enable=(PASS,), inputs=inputs)
    assert sum(node.op_type == "ReduceMax" for node in done.model.graph) == floors
    assert done.verification is not None
    assert done.verification.status == "verified"


def test_it_runs_only_where_it_is_asked_for() -> None:
    done = api.optimize(parse(TEXT, 23), level=3, verify=False)
    assert not any(node.op_type == "ReduceMax" for node in done.model.graph)
