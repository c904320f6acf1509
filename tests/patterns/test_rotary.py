"""However an exporter spells a rotary position embedding, it becomes one node.

Unless said otherwise, x is [batch, length, 2 heads, 8 elements], and c and s hold the cosines and sines of 4 pairs.
"""

from pathlib import Path

import pytest

from ortopt.testing import check_rewrites
from tests.passes import example_files

PASS = "rotary_embedding_fusion"
EXAMPLES = example_files.read_file(Path(__file__).with_name("rotary.txt"))
ROWS = "float[B,S,2,8] x, float[1,S,1,4] c, float[1,S,1,4] s"
DOUBLED = "cc = Concat <axis = -1> (c, c) ss = Concat <axis = -1> (s, s)"
HALVES = "a, b = Split <axis = -1> (x, fours)"


def test_an_operand_and_tables_outside_of_a_branch() -> None:
    branch = f"main (bool k, {ROWS}) => (float[B,S,2,8] y) <int64[2] fours = {{4, 4}}> {{ {DOUBLED} {HALVES} "
    branch += "y = If (k) <then_branch = then () => (float[B,S,2,8] u) { n = Neg (b) t = Concat <axis = -1> (n, a) "
    branch += "p = Mul (x, cc) q = Mul (t, ss) u = Add (p, q) }, else_branch = other () => (float[B,S,2,8] v) "
    branch += "{ v = Identity (x) }> }"
    result = check_rewrites(PASS, branch)
    assert sum(node.op_type == "Mul" for node in result.graph.all_nodes()) == 0


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.title for example in EXAMPLES])
def test_examples(example: example_files.Example) -> None:
    example.check(PASS)
