"""The fixed point does not depend on the order of the passes, as far as ``after`` leaves it open: equal node counts."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence

import onnx_ir as ir
import pytest

from ortopt import registry, zoo
from ortopt.api import figures
from ortopt.manager import GraphTransformerManager
from ortopt.options import Options, Target
from ortopt.serialization.load import load
from ortopt.testing import parse
from ortopt.transformer import GraphTransformer, name_key

SEEDS = (1, 2)
ZOO = (
    *("bert_small_int8__dynamic_int8", "control_flow__script17", "distilbert__dyn18raw", "gpt2_past__ts17"),
    *("greedy_loop__script17", "llama_past__ts17", "lstm_tagger__ts13", "resnet18_qdq__qdq", "t5_encoder__ts17"),
)

GRAPHS = {
    "control flow in control flow": """main (float[2] x, int64 n, bool c, float[2] k) => (float[2] y)
        <int64 one = {1}> {
        d = Not (c)
        y = If (c) <
            then_branch = t () => (float[2] u) {
                a, b = Loop (n, , x, k) <body = b1 (int64 i, bool go, float[2] p, float[2] q)
                    => (bool on, float[2] p1, float[2] q1) {
                    on = Identity (go) e = Exp (q) f = Mul (e, p) q1 = Identity (q)
                    p1 = If (d) <
                        then_branch = tt () => (float[2] r) { r = Neg (f) },
                        else_branch = te () => (float[2] s) { g = Identity (f) s = Relu (g) }
                    >
                }>
                u = Loop (one, , a) <body = b2 (int64 j, bool go2, float[2] v) => (bool on2, float[2] v1) {
                    on2 = Identity (go2) w = Add (v, k) v1 = Relu (w) }>
            },
            else_branch = e () => (float[2] o) { o1 = Relu (x) o = Relu (o1) }
        >
    }""",
    "shapes": """main (float[B,L] x, float[1,L] m) => (float[B,L] y, float[B,2,M] z)
        <int64 zero = {0}, int64 one = {1}, int64[1] at0 = {0}, int64[1] two = {2}, int64[1] m1 = {-1}> {
        s = Shape (x) b = Gather (s, zero) l = Gather (s, one) bu = Unsqueeze (b, at0) lu = Unsqueeze (l, at0)
        t = Concat <axis = 0> (bu, lu) e = Expand (m, t) u = Add (x, e) i = Identity (u) y = Relu (i)
        t2 = Concat <axis = 0> (bu, two, m1) r = Reshape (u, t2) c = Cast <to = 1> (r) z = Neg (c)
    }""",
    "convolutions": """main (float[1,3,8,8] x) => (float[?,?,?,?] y) <float[4,3,1,1] w = {1,2,3,1,2,3,1,2,3,1,2,3},
        float[4] one = {1,2,3,4}, float[4,1,1] k = {1,2,3,4}, float h = {1}> {
        c = Conv (x, w) a = Add (c, k) m = Mul (a, k)
        n = BatchNormalization (m, one, one, one, one) o = Mul (n, h) r = Relu (o) y = Relu (r)
    }""",
    "transposes": """main (float[2,3,4] x, float[4] b) => (float[?,?,?] y) <float[1,1,4] k = {1, 2, 3, 4}> {
        t = Transpose <perm = [0, 2, 1]> (x) u = Transpose <perm = [0, 2, 1]> (t) v = Add (u, b) w = Add (v, k)
        p = Transpose <perm = [2, 0, 1]> (w) q = Relu (p) y = Transpose <perm = [1, 2, 0]> (q)
    }""",
}


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
