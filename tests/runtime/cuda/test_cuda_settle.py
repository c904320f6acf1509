"""What a group on CUDA leaves in the host's memory is there before anything on the host reads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.runtime.cuda.fake_cuda import Log, fake_cuda
from tests.runtime.models import FUNCTION, HEADER, Twice, floats, session

__all__ = ["fake_cuda"]

HOST_OP = f"""{HEADER} main (float[N,4] x) => (float[N,4] y) {{
    a = ortopt.group.group_0 (x) b = my.Twice (a) y = ortopt.group.group_1 (b) }}
{FUNCTION} group_0 (p) => (r) {{ s = Neg (p) r = Exp (s) }}
{FUNCTION} group_1 (p) => (r) {{ r = Neg (p) }}"""


@pytest.mark.parametrize("more", [{}, {"specialize_after": 1}, {"specialize_after": 1, "cuda_graphs": True}], ids=str)
def test_a_host_op_reads_what_a_group_has_computed(fake_cuda: Log, more: dict[str, Any]) -> None:
    mine = session(HOST_OP, providers=["cuda", "cpu"], host_ops=[Twice], **more)
    for seed in range(3):
        x = floats(3, 4, seed=seed)
        assert_allclose(mine.run(None, {"x": x})[0], -2 * np.exp(-x), rtol=1e-5)
    kinds = fake_cuda.kinds()
    assert "download" in kinds
    assert not more.get("cuda_graphs") or kinds.count("replay") >= 2
