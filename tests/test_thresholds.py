"""From which size on a form is faster is said by the table of costs: passes of level 3 have no such numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

import ortopt
from ortopt import registry
from ortopt.analysis import costs
from ortopt.options import TransformerLevel
from ortopt.transformer import GraphTransformer

PASSES = Path(ortopt.__file__).parents[1] / "transformers"
ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
HIGHEST_LITERAL = 2
"""Numbers up to here tell one from several."""

LOWERING = "lowering.onnxruntime_cpu"
OTHER_LIMITS = {
    "activation.elu LARGEST_PARAMETER": "a proof: larger factors lose digits",
    "activation.elu ROUNDING": "a proof: two numbers that are each other's reciprocal",
    "activation.softplus MAX_ARGUMENTS": "a proof: where an exponential overflows",
    "activation.softplus MIN_ARGUMENTS": "a proof: where a logarithm is its argument's exponent",
    "attention.grouped_heads_merging 4": "a rank",
    "attention.nan_guard_elimination _BITS": "a proof: what a mask adds",
    "attention.nan_guard_elimination _LARGEST": "a proof: what a mask adds",
    "convolution.resize_projection_reordering MAX_SHARE_OF_WORK": "an estimate of work, on any provider",
    f"{LOWERING}._signal_stages MAX_NODES": "a search",
    f"{LOWERING}._signal_stages RANK": "a rank",
    f"{LOWERING}.conv_integer_conversions EXACT_INTEGERS": "a proof: the integers that float32 has",
    f"{LOWERING}.conv_integer_conversions HIGHEST_PRODUCT": "a proof: the integers that float32 has",
    f"{LOWERING}.conv_block_conversions LEFT": "a place in a list",
    f"{LOWERING}.conv_block_conversions RIGHT": "a place in a list",
    f"{LOWERING}.reduction_axes_canonicalization MAX_VALUES": "a search",
    f"{LOWERING}.split_decompositions MAX_STEPS": "a search",
    f"{LOWERING}.fourier_conversions MAX_NUMBERS": "memory: the matrix is stored",
    f"{LOWERING}.conv_block_conversions MIN_CHANNELS_OF_BLOCKS": "what a kernel takes",
    f"{LOWERING}.dense_expert_conversion 3": "a place in a list",
    f"{LOWERING}.dense_expert_conversion MAX_NODES": "a search",
    f"{LOWERING}.elementwise_conversions LARGEST": "a proof: what is infinite after it is infinite before",
    f"{LOWERING}.elementwise_conversions LEAST_POWER": "what a kernel takes",
    f"{LOWERING}.elementwise_conversions LARGEST_POWER": "a bound: how far rounding grows",
    f"{LOWERING}.fourier_conversions MAX_WHOLE": "memory: the matrix is stored",
    f"{LOWERING}.softmax_conversions DEEP": "a proof: which masks make denormal numbers",
    f"{LOWERING}.softmax_conversions ROOM": "a bound: what an element of a mask still counts",
    f"{LOWERING}.softmax_conversions SHARE": "a bound: what rounding leaves of a difference",
    f"{LOWERING}.one_hot_product_conversion LARGEST_TWICE": "memory: the matrix is stored twice",
    f"{LOWERING}.product_conversions MAX_TERMS": "memory: the row of ones is stored",
    f"{LOWERING}.transpose_conversions 3": "nodes of the chain that takes the place of three",
    f"{LOWERING}.concat_conversions 3": "nodes of the chain: two Reshapes and a Transpose",
    f"{LOWERING}.blocked_layout_conversions LARGEST_SCALE": "a proof: how far rounding grows",
    f"{LOWERING}.shuffled_conv_fusion MAX_FOLDING": "time that the pass itself takes",
    f"{LOWERING}.pixel_block_conversions BLOCK": "the pattern: blocks of 2x2",
    f"{LOWERING}.transpose_conversions MAX_RANK": "a rank",
    f"{LOWERING}.channel_product_conversions SIGNAL": "a rank",
    f"{LOWERING}.concat_conversions FEWEST_PARTS": "the form is measured with three; its inputs are no size",
    f"{LOWERING}.window_decompositions MAX_RUNS": "how many nodes may take the place of one",
    f"{LOWERING}.winograd_conversion MOST_GIVEN": "how many results tiles may give for each that is needed",
    f"{LOWERING}.fourier_conversions MAX_LENGTH": "memory: the weights are stored",
    "movement.row_selections MAX_GROWTH": "an estimate of work, on any provider",
    "movement.row_selections FEW": "fewer rows are less work on any provider; so many fewer pay for one more selection",
    "movement.splits MAX_PARTS": "a search",
    "movement.squeeze_reordering FIRST_SPATIAL": "a place in a list",
    "movement.squeeze_reordering FURTHEST": "a search",
    "quantization.quantizer_scales FACTORS": "a proof: neither product nor scale overflows or loses digits",
}
"""Limits that are no matter of a form's speed at some sizes, by module and name, each with the reason."""


def modules() -> set[str]:
    """The modules with passes that begin at level 3 or later, and what these share."""
    kinds: dict[str, list[int]] = {}
    for kind in registry.installed():
        kinds.setdefault(kind.__module__, []).append(min(kind.levels).value)
    late = {module for module, levels in kinds.items() if max(levels) >= TransformerLevel.LEVEL3.value}
    shared = {name_of(path) for path in PASSES.glob("lowering/**/_*.py")}
    return {module.removeprefix("ortopt.transformers.") for module in late} | shared


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PASSES).with_suffix("").parts)


def thresholds(module: str) -> Iterator[str]:
    """The numbers of a module that something is compared with, by their names."""
    tree = ast.parse((PASSES / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    numbers = {name for node in tree.body for name in named_numbers(node)}
    numbers |= {name for node in ast.walk(tree) for name in numbers_of_table(node, numbers)}
    for compare in (node for node in ast.walk(tree) if isinstance(node, ast.Compare)):
        inside = list(ast.walk(compare))
        if not any(isinstance(order, ORDERS) for order in compare.ops) or any(is_about_opsets(node) for node in inside):
            continue
        yield from (node.id for node in inside if isinstance(node, ast.Name) and node.id in numbers)
        yield from (str(node.value) for node in (compare.left, *compare.comparators) if is_number(node))


def named_numbers(node: ast.stmt) -> list[str]:
    """The names that a statement gives to numbers."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if value is None or not any(
        isinstance(each, ast.Constant) and type(each.value) in (int, float) for each in ast.walk(value)
    ):
        return []
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
    return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]


def numbers_of_table(node: ast.AST, tables: Container[str]) -> list[str]:
    """The names that a loop gives to each number of a table's rows."""
    if not isinstance(node, ast.For | ast.comprehension) or not isinstance(node.target, ast.Tuple):
        return []
    is_table = isinstance(node.iter, ast.Name) and node.iter.id in tables
    return [each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)] if is_table else []


def is_about_opsets(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in {"opset", "version"}


def is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and abs(node.value) > HIGHEST_LITERAL


def found() -> set[str]:
    return {f"{module} {name}" for module in modules() for name in thresholds(module)}


def test_thresholds_are_rows_of_the_table() -> None:
    assert found() == set(OTHER_LIMITS), "ask the table (`fusions.check_faster`), or say why not"


@pytest.mark.parametrize("kind", [kind for kind in registry.installed() if kind.weighs], ids=lambda kind: kind.name)
def test_forms_that_passes_ask_about_are_rows_of_the_table(kind: type[GraphTransformer]) -> None:
    known = {cost.form for cost in costs.shipped().costs}
    assert set(kind.weighs) <= known


def test_forms_that_a_module_asks_about_are_declared() -> None:
    """Who imports the question has a pass that declares what it asks, as `ortopt passes NAME` shows it."""
    asking = {
        name_of(path)
        for path in PASSES.rglob("*.py")
        if re.search(
            r"^from ortopt.framework.fusions import .*\b(check_faster|is_faster|pays_from|speed_of)\b",
            path.read_text(encoding="utf-8"),
            re.MULTILINE,
        )
    }
    declaring = {kind.__module__.removeprefix("ortopt.transformers.") for kind in registry.installed() if kind.weighs}
    assert {name for name in asking if not name.rpartition(".")[2].startswith("_")} <= declaring
