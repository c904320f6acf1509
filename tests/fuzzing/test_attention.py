"""Random attention blocks: many become one op, and that computes what the block does, by any runtime's kernel."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import onnx
import onnx.reference

from fuzzing.generator import Case
from fuzzing.oracle import Oracle, Rejected, Way, run, session
from fuzzing.patterns.attention import attention_block
from fuzzing.writer import F32, Sheet, Unsuitable, Writer, draw_feeds, finish
from ortopt import optimize
from ortopt.serialization.save import to_bytes

BLOCKS = 24
ATTEMPTS = 40
OPSETS = (13, 15, 17, 20, 22, 23, 23, 24, 25)


def block(seed: int) -> tuple[Case, int]:
    """A model of one block alone, and its opset."""
    for attempt in range(ATTEMPTS):
        draw = random.Random(f"{seed}/{attempt}")
        opset, sizes = (
            draw.choice(OPSETS),
            {"N": draw.choice((1, 2)), "S": draw.choice((3, 4)), "Z": draw.choice((0, 5))},
        )
        sheet = Sheet(draw, opset, F32, sizes)
        writer = Writer(sheet)
        try:
            attention_block(writer)
            model = finish(writer, typed=draw.random() < 0.3)
        except Unsuitable:
            continue
        other = {"N": draw.choice((0, 1, 4)), "S": draw.choice((0, 1, 5)), "Z": draw.choice((0, 1, 2))}
        feeds = [draw_feeds(sheet.inputs, sizes, seed), draw_feeds(sheet.inputs, other, seed + 1)]
        return Case(model, feeds, 0, f"block {seed}"), opset
    raise Unsuitable


def test_blocks_compute_the_same_as_whatever_they_become() -> None:
    ran, rewrites = 0, Counter[str]()
    for seed in range(BLOCKS):
        case, opset = block(seed)
        try:
            oracle = Oracle(case)
        except Rejected:
            continue
        ran += 1
        more = {"fusions": "all", "opset": opset} if seed % 2 else {}
        failure = oracle.check(Way(3, "ort", more))
        assert failure is None, f"block {seed} of opset {opset}: {failure}"
        rewrites.update(oracle.rewrites)
    assert ran > BLOCKS // 2
    assert rewrites["attention_fusion"] >= ran // 4


def test_the_standard_op_means_the_same_to_the_reference_implementation() -> None:
    """What onnx's own interpreter says; where it fails, as for some empty tensors, there is nothing to compare."""
    compared = 0
    for seed in range(2 * BLOCKS):
        case, _ = block(seed)
        result = optimize(case.model, level=2, target="onnx", verify=False)
        if result.summary.after.ops.get("Attention", 0) == 0:
            continue
        feeds = case.feeds[0]
        try:
            expected = run(session(case.model.SerializeToString()), feeds)
        except Exception:  # ONNX Runtime does not run what was drawn
            continue
        made = onnx.load_from_string(to_bytes(result.model))
        got = onnx.reference.ReferenceEvaluator(made).run(None, feeds)
        for ours, theirs in zip(got, expected, strict=True):
            coarse = theirs.dtype == np.float16
            np.testing.assert_allclose(ours, theirs, rtol=1e-2 if coarse else 1e-4, atol=1e-2 if coarse else 1e-5)
        compared += 1
    assert compared >= 3
