"""Inputs are drawn so that a model accepts them: sizes that belong together, indices that exist, the same each time."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortopt.verification.inputs import draw_inputs


def parsed(text, opset=17):
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}]> {text}'))


def test_symbols_are_bound_over_all_inputs():
    model = parsed("main (float[batch,seq] a, float[seq,batch,3] b, float[2*seq] c) => (float[batch,seq] y)"
                   " { y = Identity (a) }".replace("2*seq", "twice"))  # fmt: skip
    model.graph.inputs[2].shape = ir.Shape(["2*seq"])
    drawn = draw_inputs(model)
    assert drawn["a"].shape == drawn["b"].shape[1::-1]
    assert drawn["c"].shape == (2 * drawn["a"].shape[1],)
    assert draw_inputs(model, sizes={"seq": 5})["c"].shape == (10,)


@pytest.mark.parametrize("total", ["past_plus_seq", "total_sequence_length", "past_len + seq"])
def test_the_mask_of_a_model_with_a_past_is_as_long_as_both(total):
    past = "past" if total == "past_plus_seq" else "past_len"
    model = parsed(f"main (int64[b,seq] ids, int64[b,total] attention_mask, float[b,{past}] kv) => (int64[b,seq] y)"
                   " { y = Identity (ids) }")  # fmt: skip
    model.graph.inputs[1].shape = ir.Shape(["b", total])
    drawn = draw_inputs(model)
    assert drawn["attention_mask"].shape[1] == drawn["ids"].shape[1] + drawn["kv"].shape[1]
    assert set(np.unique(drawn["attention_mask"])) <= {0, 1}


def test_indices_stay_below_the_table_they_index():
    model = parsed(
        """main (int64[b,s] ids, int32[b,s] kind, float[5,4] other) => (float[b,s,4] y)
           <float[3,4] table = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}> {
            wide = Cast <to = 7> (kind) y = Gather (table, wide) z = Gather (other, ids) }"""
    )
    drawn = draw_inputs(model, sizes={"b": 50, "s": 50})
    assert drawn["kind"].max() == 2
    assert drawn["ids"].max() == 4
    assert drawn["kind"].dtype == np.int32
    assert min(drawn["kind"].min(), drawn["ids"].min()) == 0


def test_the_same_seed_draws_the_same():
    model = parsed("main (float[N] x, bool[N] b, string[N] s) => (float[N] y) { y = Identity (x) }")
    one, same, other = (draw_inputs(model, seed=seed) for seed in (1, 1, 2))
    assert all((one[name] == same[name]).all() for name in one)
    assert (one["x"] != other["x"]).any()
