"""MultiHeadAttention of nothing, on releases that it is not for: an If asks before, and gives what the original gives.

Here, and not among the examples: only an attention that another pass has made is guarded.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from ortopt.analysis import releases
from ortopt.api import optimize
from ortopt.serialization.load import load
from ortopt.serialization.save import to_bytes
from ortopt.testing import parse
from tests.passes import example_files
from tests.sessions import unoptimized

OP = "MultiHeadAttention"
OPEN = example_files.text("attention_fusion", "the own op where a dimension may be 0")
WIDE = OPEN.replace("float[B,T,8] v", "float[B,T,12] v").replace("float[B,S,8] y", "float[B,S,12] y")
WIDE = WIDE.replace("Reshape (v, split)", "Reshape (v, wide)").replace("{0, 0, 8}", "{0, 0, 12}")
WIDE = WIDE.replace("int64[3] merge", "int64[4] wide = {0, 0, 2, 6}, int64[3] merge")
KEYS_FIRST = example_files.text("attention_fusion", "the own op with keys that come first")
KEYS_FIRST = (
    KEYS_FIRST.replace("[2,2,4,5]", "[B,2,4,T]").replace("[2,2,5,4]", "[B,2,T,4]").replace("[2,3,8]", "[B,S,8]")
)
PAST = example_files.text("attention_fusion", "the own op with a past")
PAST = PAST.replace("[2,3,8]", "[B,S,8]").replace("[2,2,6,4]", "[B,2,P,4]").replace("[2,2,9,4]", "[B,2,A,4]")
PROJECTED = OPEN.replace("float[B,S,8] q, float[B,T,8] k, float[B,T,8] v", "float[B,S,8] x")
for seed, name in enumerate("qkv"):
    numbers = ", ".join(str((7 * index + seed) % 11 / 10 - 0.5) for index in range(64))
    PROJECTED = PROJECTED.replace("int64[3] merge", f"float[8,8] w{name} = {{{numbers}}}, int64[3] merge")
    PROJECTED = PROJECTED.replace("> {", f"> {{ {name} = MatMul (x, w{name})", 1)


def made(text: str, release: str, **more: Any) -> ir.Model:
    """What level 2 makes of a model for a release."""
    return optimize(parse(text, 17), level=2, min_onnxruntime=release, fusions="all", **more).model


def counts(model: ir.Model) -> Counter[str]:
    """How often each op is in a model, in all its graphs."""
    return Counter(node.op_type for node in model.graph.all_nodes())


@pytest.mark.parametrize("text", [OPEN, WIDE, KEYS_FIRST, PAST], ids=["flat", "wide", "keys first", "past"])
@pytest.mark.parametrize("sizes", [(0, 3, 5, 2), (2, 0, 5, 2), (0, 0, 0, 0), (2, 3, 5, 2), (2, 3, 0, 2), (1, 1, 1, 0)])
def test_the_result_is_that_of_the_original(text: str, sizes: tuple[int, ...]) -> None:
    result = made(text, "1.27")
    assert (counts(result)[OP], counts(result)["If"]) == (1, 1)
    known = dict(zip("BSTP", sizes, strict=True))
    rng = np.random.default_rng(1)
    feeds = {}
    for value in parse(text, 17).graph.inputs:
        shape = [dim if isinstance(dim, int) else known[str(dim.value)] for dim in value.shape or ()]
        feeds[value.name] = rng.standard_normal(shape).astype(np.float32)
    wanted, got = (unoptimized(each).run(None, feeds) for each in (parse(text, 17), result))
    for one, other in zip(wanted, got, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("release", "guards"), [("1.20", 1), ("1.28", 1), ("1.29", 0)])
def test_older_releases_alone_are_asked_for(release: str, guards: int) -> None:
    result = made(OPEN, release)
    assert (counts(result)[OP], counts(result)["If"]) == (1, guards)
    needed = releases.requirement(load(to_bytes(result)))
    assert needed.onnxruntime is not None
    assert releases.parse_release(needed.onnxruntime) < releases.parse_release("1.29")
    assert needed.with_nothing == (None if guards else "1.29")


def test_what_is_never_empty_needs_no_guard() -> None:
    result = made(OPEN, "1.20", nonempty=["B", "S"])
    assert (counts(result)[OP], counts(result)["If"]) == (1, 0)


def test_the_kernel_that_packs_expects_nothing() -> None:
    """com.microsoft::Attention gives a result without elements on all releases."""
    found = counts(made(PROJECTED, "1.20"))
    assert (found["Attention"], found[OP], found["If"]) == (1, 0, 0)


def test_a_models_own_op_is_left_alone() -> None:
    text = """main (float[B,S,8] q, float[B,T,8] k) => (float[B,S,8] y) {
        y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, k) }"""
    found = counts(made(text, "1.20"))
    assert (found[OP], found["If"]) == (1, 0)


def test_a_guard_is_not_guarded_again() -> None:
    once = made(OPEN, "1.20")
    again = optimize(load(to_bytes(once)), level=2, min_onnxruntime="1.20", fusions="all").model
    assert counts(again) == counts(once)
