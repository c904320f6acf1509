"""Expressions over dimensions: canonical text, arithmetic, proofs."""

import random
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest

from ortopt.graph import symbolic
from ortopt.graph.symbolic import UNKNOWN, Dim, canonical
from tests.texts import table

EXPRESSIONS = Path(__file__).parent / "expressions.txt"
N, M = symbolic.symbol("N"), symbolic.symbol("M")


@pytest.mark.parametrize(("text", "expected"), table(EXPRESSIONS, "canonical"))
def test_text_of_a_file_becomes_canonical(text: str, expected: str) -> None:
    dim = canonical(text)
    assert dim == ir.SymbolicDim(expected)
    assert canonical(dim) == dim


def test_a_long_text_is_one_symbol() -> None:
    text = "+".join(f"N{index}" for index in range(2000))
    assert canonical(text) == ir.SymbolicDim(text)


def test_opaque_names_take_part_in_arithmetic() -> None:
    batch = symbolic.symbol("batch size")
    one_more = symbolic.add(batch, 1)
    assert one_more == ir.SymbolicDim("`batch size` + 1")
    assert symbolic.symbols(one_more) == {"batch size"}
    assert symbolic.equal(symbolic.sub(one_more, 1), batch)
    assert symbolic.substitute(one_more, {"batch size": 4}) == 5


def test_a_product_that_begins_with_an_opaque_name() -> None:
    """The quotes of a name alone are its own; those of the first of several names are not."""
    own = symbolic.symbol("a b")
    product = symbolic.product([own, N])
    assert symbolic.equal(symbolic.product([product, 64]), symbolic.product([64, N, own]))
    assert symbolic.factors(product) == {"a b", "N"}
    assert symbolic.quotient_exact(product, own) == N
    assert not symbolic.equal(symbolic.symbol("`a b`"), own)


def test_unknown_poisons() -> None:
    assert symbolic.add(UNKNOWN, 1).value is None
    assert symbolic.mul(N, UNKNOWN).value is None
    assert symbolic.product([2, UNKNOWN, 0]) == 0
    assert not symbolic.equal(UNKNOWN, UNKNOWN)
    assert not symbolic.provably_different(UNKNOWN, 3)
    assert not symbolic.at_least(UNKNOWN, 0)
    assert symbolic.quotient_exact(UNKNOWN, 2) is None


def test_division_by_zero_is_unknown() -> None:
    for operation in (symbolic.floordiv, symbolic.ceildiv, symbolic.mod):
        assert not symbolic.is_known(operation(4, 0))
        assert not symbolic.is_known(operation(N, 0))
    assert symbolic.quotient_exact(4, 0) is None
    assert symbolic.quotient_exact(N, 0) is None


def test_expressions_without_bound_become_unknown() -> None:
    dim: Dim = 1
    for index in range(100):
        dim = symbolic.mul(dim, symbolic.add(symbolic.symbol(f"x{index}"), 1))
    assert not symbolic.is_known(dim)


@pytest.mark.parametrize(("text", "at_least", "not_at_least"), table(EXPRESSIONS, "bounds"))
def test_lower_bounds(text: str, at_least: str, not_at_least: str) -> None:
    assert symbolic.at_least(canonical(text), int(at_least))
    assert not symbolic.at_least(canonical(text), int(not_at_least))


def test_no_bound_where_there_is_none() -> None:
    for text in ("N - M", "-N", "N*M - N", "N - 2*(M//2)"):
        assert not symbolic.at_least(canonical(text), -100)


def test_different_is_a_proof() -> None:
    assert symbolic.provably_different(N, symbolic.add(N, 1))
    assert symbolic.provably_different(symbolic.add(N, 1), 0)
    assert symbolic.provably_different(2, 0)
    assert not symbolic.provably_different(N, 0)
    assert not symbolic.provably_different(N, M)
    assert not symbolic.provably_different(N, N)


def test_exact_quotients() -> None:
    whole = symbolic.mul(symbolic.add(N, 1), symbolic.mul(M, 12))
    assert symbolic.quotient_exact(whole, symbolic.mul(4, M)) == canonical("3*N + 3")
    assert symbolic.quotient_exact(whole, canonical("N + 1")) == canonical("12*M")
    assert symbolic.quotient_exact(whole, 5) is None
    assert symbolic.quotient_exact(whole, canonical("N + 2")) is None
    assert symbolic.divides(4, whole)
    assert not symbolic.divides(N, 4)


def test_invented_symbols() -> None:
    dim = symbolic.fresh("nonzero 3:1")
    assert symbolic.equal(dim, symbolic.fresh("nonzero 3:1"))
    assert not symbolic.equal(dim, symbolic.fresh("nonzero 3:2"))
    assert symbolic.is_invented(symbolic.add(dim, N))
    assert not symbolic.is_invented(N)


def _random_expression(rng: random.Random, depth: int) -> tuple[Dim, str]:
    """A dimension built by the functions, and the same as Python text over N, M, K."""
    if depth == 0 or rng.random() < 0.2:
        if rng.random() < 0.4:
            value = rng.randint(0, 6)
            return value, str(value)
        name = rng.choice("NMK")
        return symbolic.symbol(name), name
    left, x = _random_expression(rng, depth - 1)
    right, y = _random_expression(rng, depth - 1)
    match rng.randrange(8):
        case 0:
            return symbolic.add(left, right), f"({x}+{y})"
        case 1:
            return symbolic.sub(left, right), f"({x}-{y})"
        case 2:
            return symbolic.mul(left, right), f"({x}*{y})"
        case 3:
            return symbolic.maximum(left, right), f"max({x},{y})"
        case 4:
            return symbolic.minimum(left, right), f"min({x},{y})"
        case 5:
            return symbolic.ceildiv(left, (by := rng.randint(1, 5))), f"-(-({x})//{by})"
        case 6:
            return symbolic.mod(left, (by := rng.randint(1, 5))), f"({x}%{by})"
        case _:
            return symbolic.floordiv(left, (by := rng.randint(1, 5))), f"({x}//{by})"


def test_random_expressions_mean_what_python_says() -> None:
    rng = random.Random(7)
    known = 0
    for _ in range(300):
        dim, text = _random_expression(rng, 4)
        if not symbolic.is_known(dim):
            continue
        known += 1
        if not isinstance(dim, int):
            assert canonical(dim) == dim, text
            assert symbolic.equal(canonical(str(dim.value)), dim)
        for _ in range(6):
            binding = {name: rng.randint(0, 9) for name in "NMK"}
            expected = eval(text, {"max": max, "min": min}, binding)
            assert symbolic.substitute(dim, binding) == expected, (text, dim, binding)
            if not isinstance(dim, int):
                assert eval(str(dim.value), {"max": max, "min": min}, binding) == expected
            for bound in range(-5, 6):
                assert not symbolic.at_least(dim, bound) or expected >= bound, (text, dim, binding, bound)
    assert known > 220


def test_random_pairs_are_equal_or_different_only_if_they_are() -> None:
    rng = random.Random(8)
    for _ in range(300):
        (a, x), (b, y) = _random_expression(rng, 3), _random_expression(rng, 3)
        for _ in range(5):
            binding = {name: rng.randint(0, 6) for name in "NMK"}
            same = eval(x, {"max": max, "min": min}, binding) == eval(y, {"max": max, "min": min}, binding)
            assert not symbolic.equal(a, b) or same, (x, y, binding)
            assert not symbolic.provably_different(a, b) or not same, (x, y, binding)


def test_sympy_stays_out() -> None:
    code = "import sys, ortopt; ortopt.defer_sympy(); import ortopt.graph.symbolic as s\n"
    code += "s.add(s.symbol('N'), s.canonical('N + 1')); print('sympy' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"


def test_capped_dimensions() -> None:
    assert symbolic.is_capped(canonical("min(512, N)"), N, 2)
    assert not symbolic.is_capped(canonical("min(512, N)"), M, 2)
    assert not symbolic.is_capped(canonical("min(1, N)"), N, 2)
    assert not symbolic.is_capped(canonical("min(M, N)"), N, 2)
    assert not symbolic.is_capped(N, N, 2)
    assert not symbolic.is_capped(UNKNOWN, N, 2)


def test_floored_dimensions() -> None:
    assert symbolic.is_floored(canonical("max(1, N)"), N, 1)
    assert symbolic.is_floored(canonical("max(0, N - 1)"), canonical("N - 1"), 1)
    assert symbolic.is_floored(canonical("max(1 - M, N)"), N, 1)
    assert not symbolic.is_floored(canonical("max(2 - M, N)"), N, 1)
    assert not symbolic.is_floored(canonical("max(1, N)"), M, 1)
    assert not symbolic.is_floored(canonical("max(M, N)"), N, 1)
    assert not symbolic.is_floored(N, N, 1)
    assert not symbolic.is_floored(UNKNOWN, N, 1)


@pytest.mark.parametrize(
    "text", ["N", "N + 1", "2*N*M - 3", "(N - 3)//2 + 1", "max(N, M + 1)", "min(N, 7)*M", "`a b` + N", "5"]
)
def test_an_expression_is_computed_in_another_algebra(text: str) -> None:
    operations = {
        "+": lambda a, b: a + b, "*": lambda a, b: a * b, "//": lambda a, b: a // b, "max": max, "min": min,
    }  # fmt: skip
    dim = symbolic.canonical(int(text) if text.isdigit() else ir.SymbolicDim(text))
    for n, m in ((0, 0), (1, 5), (9, 2)):
        binding = {"N": n, "M": m, "a b": 3}
        found = symbolic.compute(dim, int, binding.__getitem__, lambda name, a, b: operations[name](a, b))
        assert found == symbolic.substitute(dim, binding)


def test_the_unknown_dimension_is_not_computed() -> None:
    with pytest.raises(ValueError, match="unknown"):
        symbolic.compute(symbolic.UNKNOWN, int, int, lambda *_: 0)


def test_what_is_broadcast_twice_with_the_same_is_the_same() -> None:
    both = symbolic.broadcast(N, M)
    assert symbolic.is_invented(both)
    assert symbolic.equal(both, symbolic.broadcast(M, N))
    assert symbolic.equal(symbolic.broadcast(both, N), both)
    assert symbolic.equal(symbolic.broadcast(symbolic.add(M, 0), both), both)
    wider = symbolic.broadcast(both, canonical("N + 3"))
    assert not symbolic.equal(wider, both)
    assert symbolic.equal(wider, symbolic.broadcast(N, symbolic.broadcast(canonical("N + 3"), M)))
    assert symbolic.equal(symbolic.broadcast(both, wider), wider)


def test_what_is_broadcast_and_has_no_name() -> None:
    inner, other = symbolic.fresh("2:x:0"), symbolic.fresh("3:x:0")
    known = symbolic.broadcast(N, inner)
    assert known.value is not None
    assert known.value.startswith(f"{symbolic.INVENTED}2:")  # it belongs to that graph
    for dim in (UNKNOWN, 4, symbolic.symbol("N" * 250), symbolic.add(symbolic.symbol("a b"), 1)):
        assert not symbolic.is_known(symbolic.broadcast(N, dim))
    assert not symbolic.is_known(symbolic.broadcast(inner, other))


def test_the_greater_of_0_and_what() -> None:
    assert symbolic.unfloored(canonical("max(0, N - 3)")) == canonical("N - 3")
    for text in ("max(1, N - 3)", "max(N, M)", "N - 3", "max(0, N, M - 9)", "min(0, N - 3)"):
        assert symbolic.unfloored(canonical(text)) is None
    assert symbolic.unfloored(5) is None


def test_one_or_none() -> None:
    assert symbolic.is_one_or_none(canonical("min(1, N)"), N)
    assert symbolic.is_one_or_none(canonical("min(1, 2*N)"), N)
    assert not symbolic.is_one_or_none(canonical("min(1, M)"), N)
    assert not symbolic.is_one_or_none(canonical("min(2, N)"), N)
    assert not symbolic.is_one_or_none(N, N)
    assert not symbolic.is_one_or_none(1, N)


def test_dimensions_where_symbols_are_not_0() -> None:
    assert symbolic.where_positive(canonical("N - min(1, N) + 1"), {"N"}) == N
    assert symbolic.where_positive(canonical("max(1, N)*M"), {"N"}) == canonical("N*M")
    assert symbolic.where_positive(canonical("max(1, N)"), {"M"}) == canonical("max(1, N)")
    assert symbolic.where_positive(UNKNOWN, {"N"}) is UNKNOWN


def test_a_dimension_that_is_another_where_it_is_0() -> None:
    copied = symbolic.where_zero(N, 8)
    assert [symbolic.substitute(copied, {"N": n}) for n in range(3)] == [8, 1, 2]
    assert symbolic.where_zero(N, 1) == canonical("max(1 - N, N)")
    assert symbolic.at_least(copied, 1)
    assert not symbolic.at_least(copied, 2)
    assert symbolic.where_positive(copied, {"N"}) == N
    assert symbolic.number_where_zero(copied, N) == 8
    for a, b in ((copied, M), (N, N), (canonical("max(8 - 8*M, N)"), N), (canonical("max(N, 3)"), N), (UNKNOWN, N)):
        assert symbolic.number_where_zero(a, b) is None


def test_what_a_dimension_is_never_above() -> None:
    assert symbolic.upper_bound(canonical("8 - 8*N")) == 8
    assert symbolic.upper_bound(canonical("min(N, 7)")) == 7
    assert symbolic.upper_bound(N) is None
    assert symbolic.upper_bound(UNKNOWN) is None
    assert symbolic.greatest_of(canonical("max(N, 8 - 8*N)")) == [canonical("8 - 8*N"), N]
    assert symbolic.greatest_of(N) == [N]
    assert symbolic.greatest_of(UNKNOWN) == []


def test_a_size_that_is_too_large_is_no_least_size() -> None:
    assert symbolic.least_of_symbol(canonical("4611686018427387904*N - 5"), 1 << 16) in (None, ("N", 1))
    assert symbolic.least_of_symbol(UNKNOWN, 1 << 16) is None
    assert symbolic.least_of_symbol(7, 1 << 16) is None
