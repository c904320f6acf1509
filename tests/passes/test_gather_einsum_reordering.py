"""Products with rows of a table are looked up among the products with all of its rows."""

import pytest

from ortopt.testing import check_keeps

PASS = "gather_einsum_reordering"
IMPORTS = '<ir_version: 8, opset_import: ["" : 17]>'
TABLE = "<float[3,2] e = {0.5, 1.5, 2.0, 1.0, 3.0, -1.0}>"
HEAD = f"{IMPORTS} main (float[B,4,L,2] x, float[L,R] n) => (float[B,4,L,R] y) {TABLE}"

ROWS = "k = Constant<value = float {2.0}> () c = Abs (n) d = Min (c, k) i = Cast<to = 7> (d)"
BODY = f'{ROWS} p = Gather (e, i) y = Einsum<equation = "bhld,lrd->bhlr"> (x, p)'


LARGE = f"float[129,2] e = {{{', '.join(['0.5'] * 258)}}}"
KEPT = {
    "another length": ("not known to be equal", HEAD.replace("float[L,R]", "float[M,R]"), BODY),
    "one length": ("not known to be equal", HEAD.replace("B,4,L", "B,4,1"), BODY),
    "rows by the other position": (
        "no product with rows for pairs",
        HEAD.replace("B,4,L,2", "B,4,R,2"),
        BODY.replace("bhld", "bhrd"),
    ),
    "another result": (
        "no product with rows for pairs",
        HEAD.replace("B,4,L,R", "B,4,R,L"),
        BODY.replace("bhlr", "bhrl"),
    ),
    "a sum over heads": (
        "no product with rows for pairs",
        HEAD.replace("B,4,L,R", "B,L,R"),
        BODY.replace("bhlr", "blr"),
    ),
    "three operands": (
        "no product of two",
        HEAD,
        f'{ROWS} p = Gather (e, i) y = Einsum<equation = "bhld,lrd,lr->bhlr"> (x, p, n)',
    ),
    "a large table": ("rows that may not be read", HEAD.replace(TABLE, f"<{LARGE}>"), BODY),
    "a computed table": (
        "no constant table",
        HEAD.replace(TABLE, "").replace("L,R] n)", "L,R] n, float[3,2] e)"),
        BODY,
    ),
    "repeated rows": ("the rows are repeated", HEAD.replace("B,4,L,2", "B,4,L,1"), BODY),
    "other rows": ("comes before", HEAD, BODY.replace("p = Gather (e, i)", "q = Gather (e, i) p = Neg (q)")),
}


@pytest.mark.parametrize("case", KEPT)
def test_keeps(case: str) -> None:
    because, head, body = KEPT[case]
    check_keeps(PASS, f"{head} {{ {body} }}", because)
