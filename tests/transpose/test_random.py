"""Random graphs: the numbers stay, transposes get fewer, and the end is the end."""

from __future__ import annotations

import pytest

from ortopt.analysis import shapes
from ortopt.graph import scope
from ortopt.options import Options
from ortopt.serialization.checks.structure import validate
from ortopt.testing import parse, run
from ortopt.transpose.optimizer import cost
from tests.transpose.numbers import PASS, check_same
from tests.transpose.random_graphs import Graph

SEEDS = 120
AT_ONCE = 10


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_numbers_stay_and_the_measure_falls(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        text = Graph(seed, 8 + seed % 14).text()
        model = parse(text)
        scope.attach(model, Options())
        shapes.infer_model(model)
        before = cost(model.graph)
        changed, _ = run(PASS, model)
        after = cost(model.graph)
        validate(model)
        if changed:
            assert after.number < before.number, text
            assert after.nbytes <= before.nbytes, text
            check_same(parse(text), model)
        again, _ = run(PASS, model)
        assert not again, text
