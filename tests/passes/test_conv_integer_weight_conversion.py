"""A ConvInteger by signed weights becomes one by unsigned weights, with the same bits."""

import pytest

from ortopt.testing import check_keeps, check_rewrites
from tests.passes.tables import keeps

PASS = "conv_integer_weight_conversion"
WEIGHT = "int8[2,1,2,2] w = {-128, 127, 65, -64, 5, 0, -1, 100}"
UNSIGNED = "uint8[2,1,2,2] w = {0, 255, 193, 64, 133, 128, 127, 228}"


@pytest.mark.parametrize(
    ("zeros", "before", "operands", "after"),
    [
        ("", "x, w", ", , o", ", uint8 o = {128}"),
        (", int8 o = {3}", "x, w, , o", ", , o", ", uint8 o = {131}"),
        (", int8 o = {-128}, uint8 z = {7}", "x, w, z, o", ", z, o", ", uint8 o = {0}, uint8 z = {7}"),
    ],
)
def test_weights(zeros: str, before: str, operands: str, after: str) -> None:
    head = "main (uint8[N,1,4,4] x) => (int32[N,2,4,4] y)"
    call = "y = ConvInteger <pads = [0, 0, 1, 1]>"
    check_rewrites(
        PASS,
        f"{head} <{WEIGHT}{zeros}> {{ {call} ({before}) }}",
        after=f"{head} <{UNSIGNED}{after}> {{ {call} (x, w{operands}) }}",
    )


test_keeps = keeps(
    PASS,
    [
        ("not of int8", f"(uint8[1,1,4,4] x) => (int32[1,2,3,3] y) <{UNSIGNED}> {{ y = ConvInteger (x, w) }}"),
        ("might saturate", f"(int8[1,1,4,4] x) => (int32[1,2,3,3] y) <{WEIGHT}> {{ y = ConvInteger (x, w) }}"),
        ("no constant", "(uint8[1,1,4,4] x, int8[2,1,2,2] w) => (int32[1,2,3,3] y) { y = ConvInteger (x, w) }"),
        (
            "no constant",
            f"(uint8[1,1,4,4] x, int8 o) => (int32[1,2,3,3] y) <{WEIGHT}> {{ y = ConvInteger (x, w, , o) }}",
        ),
    ],
)


def test_only_for_onnx_runtime() -> None:
    check_keeps(
        PASS, f"main (uint8[1,1,4,4] x) => (int32[1,2,3,3] y) <{WEIGHT}> {{ y = ConvInteger (x, w) }}", target="onnx"
    )
