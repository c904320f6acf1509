"""Slices that tile an axis are a Split; a Gather by a scalar costs a Squeeze."""

from ortopt.testing import check_keeps, check_rewrites

PASS = "gather_slice_to_split_fusion"
LONG = 2**63 - 1
HALVES = f"""main (float[N,6] x) => (float[N,A] y, float[N,B] z)
    <int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] long = {{{LONG}}}, int64[1] one = {{1}}> {{
    a = Slice (x, zero, two, one) b = Slice (x, two, long, one) y = Neg (a) z = Abs (b) }}"""


def test_slices() -> None:
    model = check_rewrites(PASS, HALVES, ops={"Slice": 0, "Split": 1})
    assert next(n for n in model.graph if n.op_type == "Split").inputs[1].const_value.numpy().tolist() == [2, 4]


SLICED = HALVES.replace("int64[1] one = {1}", "int64[1] one = {1}, int64[1] none = {0}")


def test_slices_of_all_parts_can_take_both() -> None:
    text = SLICED.replace("y = Neg (a) z = Abs (b)", "y = Slice (a, one, long, none) z = Slice (b, one, long, none)")
    check_keeps(PASS, text, because="Slices of the parts can take more away")
    check_rewrites("slice_merging", text, ops={"Slice": 2})
