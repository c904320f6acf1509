"""Attention reads heads side by side instead of transposed ones."""

import pytest

from ortopt.testing import check_rewrites
from tests.passes.tables import keeps

PASS = "attention_transpose_fusion"
PERM = "<perm = [0, 2, 1, 3]>"
IMPORTS = '<ir_version: 10, opset_import: ["" : 23]>'
OPERANDS = "float[B,S,4,8] q, float[B,T,2,8] k, float[B,T,2,6] v"
BEFORE = f"tq = Transpose{PERM} (q) tk = Transpose{PERM} (k) tv = Transpose{PERM} (v)"
BEHIND = f"y = Transpose{PERM} (o)"
CONSTANTS = "".join(
    f"{name} = Constant<value_ints = {sizes}> () "
    for name, sizes in (("sq", [0, 0, 32]), ("sk", [0, 0, 16]), ("sv", [0, 0, 12]), ("sy", [0, 0, 4, 6]))
)
FLAT = f"{CONSTANTS} fq = Reshape (q, sq) fk = Reshape (k, sk) fv = Reshape (v, sv)"
HEADS = "q_num_heads = 4, kv_num_heads = 2"


def model(attention: str, operands: str = OPERANDS, results: str = "float[B,S,4,6] y") -> str:
    return f"{IMPORTS} main ({operands}) => ({results}) {{ {attention} }}"


@pytest.mark.parametrize(
    ("attributes", "more", "mask"),
    [
        ("scale = 0.3", "", ""),
        ("is_causal = 1, softcap = 5.0", "", ""),
        ("scale = 0.3", ", m", ", float[B,1,S,T] m"),
        ("scale = 0.3", ", m", ", bool[S,T] m"),
    ],
)
@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_heads_side_by_side(attributes: str, more: str, mask: str, dtype: str) -> None:
    before = model(f"{BEFORE} o = Attention<{attributes}> (tq, tk, tv{more}) {BEHIND}", OPERANDS + mask)
    after = f"{FLAT} o = Attention<{attributes}, {HEADS}> (fq, fk, fv{more}) y = Reshape (o, sy)"
    check_rewrites(PASS, before.replace("float[", f"{dtype}["), after)


def test_a_past() -> None:
    operands = f"{OPERANDS.replace('T', 'S')}, float[B,2,P,8] pk, float[B,2,P,6] pv"
    results = "float[B,S,4,6] y, float[B,2,U,8] nk, float[B,2,U,6] nv"
    before = f"{BEFORE} o, nk, nv = Attention (tq, tk, tv, , pk, pv) {BEHIND}"
    after = f"{FLAT} o, nk, nv = Attention<{HEADS}> (fq, fk, fv, , pk, pv) y = Reshape (o, sy)"
    check_rewrites(PASS, model(before, operands, results), after)


PLAIN = f"{BEFORE} o = Attention (tq, tk, tv) {BEHIND}"
KEPT = {
    "a mask without a kernel": (
        "there is no kernel for its mask",
        model(f"{BEFORE} o = Attention (tq, tk, tv, m) {BEHIND}", f"{OPERANDS}, uint8[S,T] m"),
    ),
    "an operand as it is": (
        "comes before",
        model(PLAIN.replace(f"tv = Transpose{PERM} (v)", "tv = Neg (v)"), OPERANDS.replace("T,2,6", "2,T,6")),
    ),
    "an operand of another order": (
        "an operand is transposed in another way",
        model(
            PLAIN.replace(f"tv = Transpose{PERM} (v)", "tv = Transpose<perm = [0, 3, 1, 2]> (v)"),
            OPERANDS.replace("T,2,6", "T,6,2").replace("B,T,6", "B,T,6").replace("float[B,T,6,2]", "float[B,2,6,T]"),
        ),
    ),
    "a result with heads first": (
        "no Transpose comes after",
        model(f"{BEFORE} o = Attention (tq, tk, tv) y = Neg (o)", results="float[B,4,S,6] y"),
    ),
    "the scores": (
        "its scores are asked for",
        model(f"{BEFORE} o, , , s = Attention (tq, tk, tv) {BEHIND}", results="float[B,S,4,6] y, float[B,4,S,T] s"),
    ),
    "an unknown number of heads": ("is not known", model(PLAIN, OPERANDS.replace("S,4", "S,H"))),
    "doubles": ("a type that has no kernel", model(PLAIN).replace("float[", "double[")),
}


test_keeps = keeps(PASS, KEPT)
