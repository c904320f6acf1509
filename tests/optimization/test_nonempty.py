"""Dimensions that are never 0, as the caller says: no branch asks whether there is anything, and none is verified."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Collection
from typing import Any

import onnx_ir as ir
import pytest

from ortopt import optimize, zoo
from ortopt.errors import UsageError
from ortopt.options import Options
from ortopt.reporting import long_report, report
from ortopt.testing import parse
from ortopt.verification.verify import Reference

DECODER = "mistral_past__dyn20raw"  # ONNX Runtime's Attention refuses a batch of 0, which an If asks for
pytestmark = pytest.mark.usefixtures("models_run_here")


def ops(model: ir.Model) -> Counter[str]:
    return Counter(node.op_type for node in model.graph)


@pytest.mark.parametrize("names", [("batch", "seq"), ("*",), ("batch", "s*")])
def test_no_branch_asks_for_them(names: tuple[str, ...]) -> None:
    result: Any = optimize(zoo.cached(DECODER), nonempty=names)
    assert result.verified
    counted = ops(result.model)
    assert (counted["If"], counted["Size"], counted["Attention"]) == (0, 0, 2)
    data = report.as_dict(result, options=Options(nonempty=names))
    out: Any = report.console(io.StringIO())
    long_report.show(data, out)
    assert f"no size {', '.join(names)} of an input is 0" in " ".join(out.file.getvalue().split())


@pytest.mark.parametrize("names", [(), ("seq",)])
def test_a_branch_asks_for_the_others(names: tuple[str, ...]) -> None:
    result = optimize(zoo.cached(DECODER), nonempty=names)
    assert result.verified
    assert ops(result.model)["If"] == 2


def test_a_fixed_one_may_be_named() -> None:
    result = optimize(zoo.cached(DECODER), dims={"batch": 1}, nonempty=["batch", "seq"])
    assert result.verified
    assert ops(result.model)["If"] == 0


@pytest.mark.parametrize("names", [["batc"], ["batch", "x*"]])
def test_a_name_that_no_input_has(names: list[str]) -> None:
    with pytest.raises(UsageError, match=re.escape(f"a dimension named {names[-1]}; the names: batch, past, ")):
        optimize(zoo.cached(DECODER), nonempty=names)


@pytest.mark.parametrize("names", [(), ("N",)])
def test_verification_draws_no_inputs_without_elements(names: Collection[str]) -> None:
    original = parse("main (float[N] x) => (float[N] z, int64[1] y) { z = Neg (x) y = Shape (x) }")
    text = "z = Neg (x) s = Shape (x) y = Max (s, one)"
    result = parse(f"main (float[N] x) => (float[N] z, int64[1] y) <int64 one = {{1}}> {{ {text} }}")
    with Reference(original, nonempty=names, in_process=True) as reference:
        assert (reference.compare(result).status == "verified") is bool(names)
