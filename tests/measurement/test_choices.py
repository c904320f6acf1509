"""What tuning tries: everything that is off for a reason that may not hold here, and everything that may lose here."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from ortopt import api
from ortopt.measurement.choices import Candidate, Choices, Declined, candidates, merged
from ortopt.options import Fusions, March, Target
from ortopt.testing import check_rewrites, parse
from tests.test_fusions import RESIDUAL

DEFAULT = Choices(3, Fusions.DEFAULT, (), ())
SKIPPED = "com.microsoft::SkipLayerNormalization"
NATIVE = "forms for processors like this one (--march native)"
SINGLE = "forms that lose with several threads (--for-threads 1)"
TWO = """main (float[N,4,8] x, float[N,4,8] s, float[8] g, float[8] b, float[8] c)
    => (float[N,4,8] y, float[N,4,8] z) {
    t = Add (x, s) y = LayerNormalization <epsilon = 0.001> (t, g, b) h = Add (x, c) z = com.microsoft.Gelu (h) }"""


def tried(
    text: str, chosen: Choices = DEFAULT, *, one_thread: bool = False, target: Target = Target.ORT
) -> list[Candidate]:
    declined = Declined()
    done = api.optimize(parse(text), level=3, verify=False, observers=[declined])
    return list(candidates(chosen, done.summary, declined, one_thread=one_thread, target=target))


def test_a_form_that_loses_elsewhere_is_tried_with_the_reason() -> None:
    found = {one.name: one.choices for one in tried(RESIDUAL)}
    (name,) = [name for name in found if name.startswith(SKIPPED)]
    assert "(elsewhere 2.50× to 7.69× slower)" in name
    assert found[name] == replace(DEFAULT, force_forms=(SKIPPED,))


def test_all_forms_at_once_come_before_each_of_them_and_the_most_promising_first() -> None:
    names = [one.name for one in tried(TWO)]
    (at,) = [i for i, name in enumerate(names) if name == "every form that is left out (--fusions all)"]
    assert [name.split(" (")[0] for name in names[at + 1 : at + 3]] == ["com.microsoft::BiasGelu", SKIPPED]
    assert not any("--fusions all" in one.name for one in tried(RESIDUAL))  # it would be the same


def test_a_form_that_no_fusions_insist_on_is_tried_too() -> None:
    text = """main (float[1,2] x) => (float[1,1] y, float[1,2] z)
        <float[2,3] w = {1, 2, 3, 4, 5, 6}, int64[2] k = {1, 2}> {
        a = MatMul (x, w) y, z = Split <axis = -1> (a, k) }"""
    (found,) = [one for one in tried(text) if one.choices.force_forms == ("MatMul one for each part",)]
    options = found.choices.applied_to(api.make_options(level=3))
    check_rewrites("matmul_split_decomposition", text, ops={"MatMul": 2, "Split": 0}, options=options)


def test_forms_of_this_processor_are_tried_and_those_of_one_thread_where_the_result_has_one() -> None:
    assert NATIVE in [one.name for one in tried(RESIDUAL)]
    assert SINGLE not in [one.name for one in tried(RESIDUAL)]
    found = {one.name: one.choices for one in tried(RESIDUAL, one_thread=True)}
    assert found[SINGLE] == replace(DEFAULT, for_threads=1)
    assert found[NATIVE] == replace(DEFAULT, march=March.NATIVE)
    chosen = replace(DEFAULT, fusions=Fusions.ALL, march=March.NATIVE, for_threads=1)
    names = [one.name for one in tried(RESIDUAL, chosen, one_thread=True)]
    assert not any(name in (NATIVE, SINGLE) or name.startswith(SKIPPED) for name in names)


def test_standard_ops_are_tried_before_single_passes_where_the_target_is_left_open() -> None:
    found = [one for one in tried(RESIDUAL) if not one.is_pass][-1]
    assert found.name == "standard ops only (--target onnx)"
    assert found.choices.applied_to(api.make_options()).target is Target.ONNX
    assert Choices.of(api.make_options(target="onnx")).target == "onnx"  # so a replayed report is the same
    for target in (Target.ONNX, Target.WEB):
        assert not any("--target" in one.name for one in tried(RESIDUAL, target=target))


def test_single_passes_come_last() -> None:
    kinds = [one.is_pass for one in tried(RESIDUAL)]
    assert kinds == sorted(kinds)
    assert set(kinds) == {False, True}


def test_passes_that_are_off_by_default_are_tried_unless_they_approximate_or_were_disabled() -> None:
    names = [one.name for one in tried(RESIDUAL)]
    assert "with ensure_unique_dq, which is off by default" in names
    assert not any("gelu_approximation" in name for name in names)
    disabled = [one.name for one in tried(RESIDUAL, replace(DEFAULT, disable=("ensure_unique_dq",)))]
    assert not any("ensure_unique_dq" in name for name in disabled)


@pytest.mark.parametrize(
    ("other", "both"),
    [
        (
            replace(DEFAULT, fusions=Fusions.ALL),
            Choices(3, Fusions.ALL, ("a",), ("b",), ("c",), march=March.NATIVE),
        ),
        (
            Choices(3, Fusions.DEFAULT, ("d",), ("e",), ("f",), for_threads=1),
            Choices(3, Fusions.DEFAULT, ("a", "d"), ("b", "e"), ("c", "f"), march=March.NATIVE, for_threads=1),
        ),
    ],
)
def test_a_choice_on_top_of_others(other: Choices, both: Choices) -> None:
    assert merged(Choices(3, Fusions.DEFAULT, ("a",), ("b",), ("c",), march=March.NATIVE), other) == both
