"""Attention reads heads side by side instead of transposed ones."""

import pytest

from ortopt.testing import check_rewrites

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
