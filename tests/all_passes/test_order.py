"""The fixed point does not depend on the order of the passes, as far as ``after`` leaves it open: equal node counts."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir
import pytest

from ortopt import registry, zoo
from ortopt.api import figures
from ortopt.manager import GraphTransformerManager
from ortopt.options import Options, Target
from ortopt.serialization.load import load
from ortopt.testing import parse
from ortopt.transformer import GraphTransformer, name_key
from tests.texts import read

GRAPHS = {case.title: case.body for case in read(Path(__file__).parent / "cases" / "orders.txt")}
SEEDS = (1, 2)
ZOO = (
    *("bert_small_int8__dynamic_int8", "control_flow__script17", "distilbert__dyn18raw", "gpt2_past__ts17"),
    *("greedy_loop__script17", "llama_past__ts17", "lstm_tagger__ts13", "resnet18_qdq__qdq", "t5_encoder__ts17"),
)


def in_another_order(transformers: Sequence[GraphTransformer], seed: int) -> list[GraphTransformer]:
    """A random order that respects ``after``."""
    draw = random.Random(seed)
    by_key = {name_key(one.name): one for one in transformers}
    waits = {key: {name_key(name) for name in one.after} & by_key.keys() for key, one in by_key.items()}
    order: list[GraphTransformer] = []
    while waits:
        key = draw.choice(sorted(key for key, earlier in waits.items() if not earlier))
        del waits[key]
        for earlier in waits.values():
            earlier.discard(key)
        order.append(by_key[key])
    return order


def counts(model: ir.Model, seed: int | None) -> dict[str, int]:
    """Node counts by op after level 1, with the passes in their own order, or in another."""
    options = Options(level=1, target=Target.ONNX)
    transformers = [chosen.transformer for chosen in registry.select(options)]
    if seed is not None:
        transformers = in_another_order(transformers, seed)
    manager = GraphTransformerManager(options=options, keep_order=seed is not None)
    for transformer in transformers:
        manager.register(transformer, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the bound on steps
        manager.apply_transformers(model, 1)
    return dict(figures(model).ops)


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo(name: str) -> None:
    expected = counts(load(zoo.cached(name)), None)
    for seed in SEEDS:
        assert counts(load(zoo.cached(name)), seed) == expected, f"seed {seed}"


@pytest.mark.parametrize("name", GRAPHS)
def test_small_graphs(name: str) -> None:
    expected = counts(parse(GRAPHS[name]), None)
    for seed in range(8):
        assert counts(parse(GRAPHS[name]), seed) == expected, f"seed {seed}"


def test_orders_differ() -> None:
    transformers = [chosen.transformer for chosen in registry.select(Options(level=1))]
    orders = {tuple(one.name for one in in_another_order(transformers, seed)) for seed in SEEDS}
    assert len(orders) == len(SEEDS)
