"""Initial states of zeros go, and what made them; any other start stays."""

import pytest

from ortopt.testing import check_keeps, check_rewrites

PASS = "recurrent_state_elimination"
GATES = {"LSTM": 16, "GRU": 12, "RNN": 4}


def recurrence(op: str, states: str, body: str = "", *, outputs: str = "y, h", layout: str = "") -> str:
    gates = GATES[op]
    w, r = (", ".join(["0.1"] * (gates * size)) for size in (3, 4))
    return f"""main (float[T,N,3] x, float[1,N,4] given) => (float[T,1,N,4] y)
        <float[1,{gates},3] w = {{{w}}}, float[1,{gates},4] r = {{{r}}}, int64[1] one = {{1}}, int64[1] four = {{4}}> {{
            n = Shape <start = 1, end = 2> (x) shape = Concat <axis = 0> (one, n, four)
            zero = ConstantOfShape (shape) {body}
            {outputs} = {op} <hidden_size = 4{layout}> (x, w, r, , , {states}) }}"""


@pytest.mark.parametrize(
    ("op", "states", "outputs"), [("LSTM", "zero, zero", "y, h, c"), ("GRU", "zero", "y, h"), ("RNN", "zero", "y")]
)
def test_zeros_of_the_batch_size_go(op: str, states: str, outputs: str) -> None:
    model = check_rewrites(PASS, recurrence(op, states, outputs=outputs), ops={"ConstantOfShape": 0, "Shape": 0, op: 1})
    (node,) = model.graph
    assert len(node.inputs) == 3


def test_through_ops_that_only_move_elements() -> None:
    body = "big = Concat <axis = 0> (four, n, four) all = ConstantOfShape (big) s = Slice (all, one, two_, ax)"
    body = body.replace("two_", "to").replace("ax)", "first)")
    text = recurrence("LSTM", "s, zero", body).replace(
        "int64[1] four", "int64[1] to = {2}, int64[1] first = {0}, int64[1] four"
    )
    check_rewrites(PASS, text, ops={"ConstantOfShape": 0, "Slice": 0})


def test_sizes_of_32_bits() -> None:
    """TensorFlow's integers: a batch of 2^32 would wrap around, and the recurrence would not run."""
    body = """s32 = Cast <to = 6> (n) f32 = Cast <to = 6> (four) k = Concat <axis = 0> (s32, f32)
        k64 = Cast <to = 7> (k) e = Expand (nothing, k64) u = Unsqueeze (e, first) one_side = Concat <axis = 0> (u) """
    text = recurrence("LSTM", "one_side, u", body).replace(
        "int64[1] four", "float nothing = {0}, int64[1] first = {0}, int64[1] four"
    )
    model = check_rewrites(PASS, text, ops={"Expand": 0, "LSTM": 1})
    assert len(list(model.graph)[-1].inputs) == 3
    check_keeps(PASS, text.replace("nothing = {0}", "nothing = {0.5}"), "does not start from zeros")


def test_one_of_two_states() -> None:
    model = check_rewrites(PASS, recurrence("LSTM", "zero, given"), ops={"LSTM": 1, "ConstantOfShape": 0})
    (node,) = model.graph
    assert node.inputs[5] is None
    assert node.inputs[6] is not None


def test_with_quantized_weights() -> None:  # of fixed sizes: the kernel ends the process on empty inputs
    text = """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
    main (float[3,2,1] x, float[1,2,1] given) => (float[3,1,2,1] y)
        <int8[1,1,4] w = {1, -2, 3, 4}, int8[1,1,4] r = {3, 2, -1, 1}, float[1] s = {0.125}, int8[1] z = {0},
         int64[3] shape = {1, 2, 1}> {
            zero = ConstantOfShape (shape)
            y, h, c = com.microsoft.DynamicQuantizeLSTM <hidden_size = 1> (x, w, r, , , zero, zero, , s, z, s, z) }"""
    model = check_rewrites(PASS, text, ops={"ConstantOfShape": 0, "com.microsoft::DynamicQuantizeLSTM": 1})
    (node,) = model.graph
    assert [value is None for value in node.inputs] == [False] * 3 + [True] * 5 + [False] * 4
    check_keeps(PASS, text.replace("zero, zero", "given, given"), "not a constant")
    check_keeps(PASS, text.replace("{1, 2, 1}", "{2, 1, 1}"), "another shape")
