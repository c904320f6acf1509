"""What the CPU computes in floats before and behind, it also computes in floats in between."""

from __future__ import annotations

from pathlib import Path

from ortopt import optimize
from ortopt.testing import check_keeps, check_rewrites, parse
from tests.passes.tables import keeps
from tests.passes.test_bias_sum_conversion import loaded

PASS = "half_kernel_conversion"
GELU = "main (float16[B,S,8] x) => (float16[B,S,8] y) { a = Neg (x) b = Gelu (a) y = Neg (b) }"
WEIGHTS = ", ".join(
    f"float16[16,16,1,1] {name} = {{{', '.join([bits] * 256)}}}"
    for name, bits in zip("uvw", ("11000", "11001", "11002"), strict=True)
)
CLIP = f"""main (float16[1,16,8,8] x) => (float16[1,16,8,8] y)
    <{WEIGHTS}, float16 low = {{0}}, float16 high = {{17920}}> {{
    a = Conv (x, u) b = Clip (a, low, high) c = Conv (b, v) d = Clip (c, low, high) y = Conv (d, w) }}"""


def test_clip() -> None:
    check_rewrites(PASS, CLIP, ops={"Clip": 2, "Cast": 8}, opset=13)


def test_onnxruntime_makes_the_clip_a_part_of_the_convolution(tmp_path: Path) -> None:
    """A release that does so for halves, too, needs no such rewrite."""
    assert "Clip" in loaded(parse(CLIP, opset=13), tmp_path)
    result = optimize(parse(CLIP, opset=13), level=3, verify=False).model
    assert "Clip" not in loaded(result, tmp_path)


def test_what_onnxruntime_makes_of_it(tmp_path: Path) -> None:
    """It spells a Gelu of halves out, and drops the Casts between what it computes in floats."""
    text = GELU.replace("Neg", "Sqrt")
    assert "Gelu" not in loaded(parse(text, opset=20), tmp_path)
    result = optimize(parse(text, opset=20), level=3, verify=False).model
    assert loaded(result, tmp_path) == ["Cast", "Sqrt", "Gelu", "Sqrt", "Cast"]


KEPT_CLIPS = {
    "no Conv comes before": CLIP.replace("Conv (x, u)", "Neg (x)").replace("Conv (b, v)", "Neg (b)"),
    "its bounds are computed": CLIP.replace("a = ", "top = ReduceMax <keepdims = 0> (x) a = ")
    .replace(", high)", ", top)"),
    "the value is used elsewhere": CLIP.replace("8] y)", "8] y, float16[1,16,8,8] a, float16[1,16,8,8] c)"),
}  # fmt: skip


test_keeps_clips = keeps(PASS, KEPT_CLIPS, opset=13)


def test_clips_of_old_opsets() -> None:
    old = CLIP.replace("Clip (", "Clip <min = 0.0, max = 6.0> (").replace(", low, high", "")
    check_keeps(PASS, old, "its bounds are attributes", opset=9)
