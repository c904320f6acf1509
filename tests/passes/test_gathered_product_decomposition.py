"""Which number of rows decides whether each matrix multiplies its own."""

from ortopt.options import Options
from ortopt.testing import check_keeps, check_rewrites

PASS = "gathered_product_decomposition"

ROWS = "float[N,1,128] x, float[N,3] s"

WEIGHTS = ", ".join(str(number % 7 - 3) for number in range(3 * 128 * 64))

PRODUCT = f"""<float[3,128,64] w = {{{WEIGHTS}}}> {{
    e = ArgMax <axis = 1, keepdims = 0> (s) g = Gather (w, e) y = MatMul (x, g) z = Neg (past) }}"""

SLOWER = "than a Gather of a matrix for each row"


def test_rows_that_are_all_that_is_open_are_tokens() -> None:
    """A layer that is exported alone has no other name for them; who expects one row says so."""
    text = f"main ({ROWS}, float past) => (float[N,1,64] y, float z) {PRODUCT}"
    check_rewrites(PASS, text, ops={"Gemm": 3, "MatMul": 0})
    check_rewrites(PASS, text, ops={"Gemm": 3, "MatMul": 0}, options=Options(dim_hints={"N": (16, 512)}, for_threads=1))
    check_keeps(PASS, text, SLOWER, options=Options(dim_hints={"N": (1, 512)}))


def test_a_batch_is_one_row_where_positions_are_open() -> None:
    """A decoder's step is one token."""
    check_keeps(PASS, f"main ({ROWS}, float[N,P] past) => (float[N,1,64] y, float[N,P] z) {PRODUCT}", SLOWER)
