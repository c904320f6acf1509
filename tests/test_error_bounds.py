"""Forms whose error is bounded: when a run takes them, and what is said of them."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt import Numerics, Options, RewriteRule
from ortopt.cli.passes import describe
from ortopt.errors import RegistrationError
from ortopt.framework.error_bounds import check_bound
from ortopt.graph.match import dims, inputs, is_op, need
from ortopt.registry import Registry
from ortopt.rule import Forwarded
from ortopt.testing import check_keeps, check_rewrites

BOUND = 1e-9


class ExpOfNegatives(RewriteRule[Forwarded]):
    """``Exp(x)`` → ``Exp(-(-x))``: as a form with an error that is bounded."""

    numerics = Numerics.BOUNDED
    error_bound = "each element by at most 1e-9"
    roots = ("Exp",)

    def match(self, root: ir.Node) -> Forwarded:
        (x,) = inputs(root, 1)
        need(not is_op(x.producer(), "Neg"), "it is negated", x)
        (length,) = dims(x, 1)
        check_bound(root, BOUND, length if isinstance(length, int) else None)
        return Forwarded((root,), x)

    def rewrite(self, found: Forwarded) -> ir.Node:
        back = ir.node("Neg", [ir.node("Neg", [found.value]).outputs[0]])
        return ir.node("Exp", back.outputs)


class WithoutBound(ExpOfNegatives):
    """``Exp(x)`` → ``Exp(-(-x))``."""

    error_bound = ""


class WithoutReason(ExpOfNegatives):
    """``Exp(x)`` → ``Exp(-(-x))``."""

    numerics = Numerics.REORDERED


def text(length: object) -> str:
    return f"main (float[{length}] x) => (float[{length}] y) {{ y = Exp (x) }}"


def test_a_bound_below_rounding_is_taken():
    check_rewrites(ExpOfNegatives(), text(59), ops={"Neg": 2})


@pytest.mark.parametrize(
    ("length", "because"), [(60, "60 elements may be off by 1e-09 each"), ("N", "how many are summed is not known")]
)
def test_a_greater_one_on_request_only(length, because):
    check_keeps(ExpOfNegatives(), text(length), because=because)
    check_rewrites(ExpOfNegatives(), text(length), ops={"Neg": 2}, options=Options(bounded_error=True))


def test_it_is_shown():
    described = describe(ExpOfNegatives, "the test")
    assert described["numerics"] == "bounded"
    assert described["error_bound"] == "each element by at most 1e-9"


@pytest.mark.parametrize("wrong", [WithoutBound, WithoutReason])
def test_bound_and_class_go_together(wrong):
    with pytest.raises(RegistrationError, match="go together"):
        Registry().add(wrong, "the test")
