"""Which ONNX Runtime reads a model, from its opset, its IR version and ONNX Runtime's own ops."""

from __future__ import annotations

import onnxruntime
import pytest

from ortopt import UsageError, optimize
from ortopt.analysis import kernel_history, releases
from ortopt.testing import parse

GELU = """main (float[N,4] x) => (float[N,4] y)
    <float half = {0.5}, float one = {1}, float r = {1.41421354}> {
    d = Div (x, r) e = Erf (d) a = Add (e, one) m = Mul (x, a) y = Mul (m, half) }"""


def test_the_installed_release_is_read_without_importing_it() -> None:
    assert releases.installed() == releases.parse_release(onnxruntime.__version__)


@pytest.mark.parametrize(("text", "release"), [("1.23", (1, 23)), ("1.23.2", (1, 23)), ("1.31.0+cu13", (1, 31))])
def test_versions(text: str, release: tuple[int, int]) -> None:
    assert releases.parse_release(text) == release


@pytest.mark.parametrize("text", ["", "1", "x", "1.x", "one.two"])
def test_what_is_no_version_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no version of ONNX Runtime"):
        optimize(parse(GELU), min_onnxruntime=text, verify=False)


def test_opsets_between_two_listed_ones_need_the_later_release() -> None:
    assert releases.of_opset(23) == (1, 23)
    assert releases.of_opset(24) == releases.of_opset(25) == (1, 24)
    assert releases.of_opset(1000) > releases.parse_release(onnxruntime.__version__)


@pytest.mark.parametrize(
    ("options", "first", "any_runtime"),
    [
        ({"level": 1}, "1.12", True),
        ({"level": 2}, "1.12", False),  # com.microsoft::Gelu
        ({"level": 2, "target": "onnx"}, "1.12", True),
        ({"level": 2, "target": "onnx", "opset": 20}, "1.17", True),
        ({"level": 1, "opset": 23}, "1.23", True),
    ],
)
def test_a_result_says_what_it_needs(options: dict[str, object], first: str, any_runtime: bool) -> None:
    model = parse(GELU, opset=17)
    model.ir_version = 8
    result = optimize(model, verify=False, **options)  # type: ignore[arg-type]
    requires = result.summary.requires
    assert (requires.onnxruntime, requires.any_runtime) == (first, any_runtime)


def test_ops_of_others_leave_the_release_open() -> None:
    text = '<ir_version: 8, opset_import: ["" : 17, "mine" : 1]> main (float[N] x) => (float[N] y) { y = mine.Op (x) }'
    requires = optimize(parse(text), verify=False).summary.requires
    assert (requires.onnxruntime, requires.only_onnxruntime) == (None, ("mine::Op",))


def test_ops_that_the_least_release_lacks_are_not_emitted(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {("com.microsoft", "Gelu"): (((1, 17), None), ((1, 20), [[1, [1, 1], [1, 1], []]]))}
    monkeypatch.setattr(kernel_history, "_schemas", lambda: own)
    kept = optimize(parse(GELU), level=2, min_onnxruntime="1.19", verify=False)
    made = optimize(parse(GELU), level=2, min_onnxruntime="1.20", verify=False)
    assert "com.microsoft::Gelu" not in kept.summary.after.ops
    assert "com.microsoft::Gelu" in made.summary.after.ops
