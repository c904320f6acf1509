"""Models that a pass keeps, as a table: ``test_keeps = keeps("relu_fusion", {"no operand is 0": "main (…"})``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import pytest

from ortopt import testing
from ortopt.transformer import GraphTransformer


def keeps(
    transformer: str | GraphTransformer, rows: Mapping[str, Any] | Sequence[tuple[Any, ...]], **more: Any
) -> Callable[[str], None]:
    """A test for each model that a pass must leave alone.

    Args:
        transformer: The pass.
        rows: Models by reason, or reasons and models by what they show, or a sequence of reasons and models. Behind a
            model may stand other arguments of `check_keeps`. A graph need not be named.
        **more: Arguments for all rows.
    """
    check = testing.check_keeps
    named = rows if isinstance(rows, Mapping) else {f"{row[0]} {number}": row for number, row in enumerate(rows)}

    @pytest.mark.parametrize("case", named)
    def test(case: str) -> None:
        because, own = case, {}
        match named[case]:
            case str() | ir.Model() as model:
                pass
            case (model, Mapping() as own):
                pass
            case (because, model, *rest):
                own = dict(*rest)
        text = f"main {model}" if isinstance(model, str) and model.startswith("(") else model
        check(transformer, text, because, **more, **own)

    test.table = True  # tests/all_passes/pass_examples.py takes each row
    return test
