"""Facts of a result as a run gives them, with a value for each."""

from __future__ import annotations

from ortopt.regression.facts import Facts

WHOLE: Facts = {
    "model": "a" * 64,
    "options": "-O2",
    "verified": "verified",
    "inputs": ["x: float[N,8]"],
    "outputs": ["y: float[N,8]"],
    "nodes": 100,
    "ops": {"Add": 60, "MatMul": 30, "com.microsoft::Gelu": 10},
    "original": {"nodes": 400, "weights": 1_000_000},
    "blocks": {"attention": {"found": 12, "fused": 12}, "normalization": {"found": 25, "fused": 24}},
    "fused": {"com.microsoft::Gelu": 10},
    "size": 1_010_000,
    "error": 1e-7,
    "bound": 1e-4,
    "rewrites": {"gelu_fusion": 10, "constant_folding": 7},
    "repairs": {"wrong_fusion": 1},
    "failures": {"failing_fusion": 1},
    "result": "b" * 64,
    "seconds": 1.5,
    "memory": 30_000_000,
    "latency": {"ratio": 0.8, "low": 0.75, "high": 0.85, "rounds": 9},
}
