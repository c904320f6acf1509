"""Sizes of nodes by name, from proven shapes and the sizes at which a question is asked."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.analysis.node_sizes import NAMES, sizes_of
from ortopt.framework.workspace import Workspace
from ortopt.options import Options
from ortopt.testing import parse


def nodes_of(text: str) -> list[ir.Node]:
    """The nodes of a model whose shapes have been inferred."""
    return list(Workspace(parse(text), Options()).model.graph)


ATTENTION = "<q_num_heads = 2, kv_num_heads = 2>"


@pytest.mark.parametrize(
    ("shape", "place", "sizes"),
    [
        ("2,3,8", {}, {"rows": 6, "columns": 8, "elements": 48, "batch": 2, "channels": 3, "length": 3}),
        ("2,3,K", {}, {"rows": 6, "batch": 2, "channels": 3, "length": 3}),
        ("N,8", {}, {"columns": 8}),
        ("N,8", {"N": (3, 3)}, {"rows": 3, "columns": 8, "elements": 24, "batch": 3}),
        ("N,8", {"N": (1, 512)}, {"rows": (1, 512), "columns": 8, "elements": (8, 4096), "batch": (1, 512)}),
        ("N,M,8", {"N": (1, 2), "M": (3, 5)}, {"rows": (3, 10), "elements": (24, 80), "columns": 8}),
        ("8", {}, {"rows": 1, "columns": 8, "elements": 8}),
        ("", {}, {}),
    ],
)
def test_sizes(shape: str, place: dict[str, tuple[int, int]], sizes: dict[str, int | tuple[int, int]]) -> None:
    model = parse(f"main (float[{shape}] x) => (float[{shape}] y) {{ y = Neg (x) }}")
    known = sizes_of(model.graph[0], place)
    expected = {name: (size, size) if isinstance(size, int) else size for name, size in sizes.items()}
    assert expected.items() <= known.items()
    assert known.keys() <= set(NAMES)
    if not place:
        assert known == expected


def test_a_size_that_an_expression_makes() -> None:
    text = "main (float[N,4] x, float[M,4] z) => (float[K,4] y) { c = Concat <axis = 0> (x, z) y = Neg (c) }"
    node = nodes_of(text)[1]
    assert sizes_of(node, {"N": (1, 3), "M": (2, 2)})["rows"] == (3, 5)
    assert "rows" not in sizes_of(node, {"N": (1, 3)})


def test_outputs_are_channels_of_convolutions_and_columns_of_products() -> None:
    (conv,) = nodes_of("main (float[1,3,8,8] x, float[4,3,1,1] w) => (float[a,b,c,d] y) { y = Conv (x, w) }")
    assert sizes_of(conv)["outputs"] == (4, 4)
    (product,) = nodes_of("main (float[5,3] x, float[3,7] w) => (float[a,b] y) { y = MatMul (x, w) }")
    assert sizes_of(product)["outputs"] == (7, 7)


def test_positions_in_a_cache() -> None:
    text = f"""main (float[1,S,8] x, float[1,2,P,4] k) => (float[1,S,8] y, float[1,2,T,4] n, float[1,2,T,4] m)
        {{ y, n, m = Attention {ATTENTION} (x, x, x, , k, k) }}"""
    assert sizes_of(parse(text, 23).graph[0], {"S": (1, 1), "P": (128, 128)})["past"] == (128, 128)
    without = parse(f"main (float[1,S,8] x) => (float[1,S,8] y) {{ y = Attention {ATTENTION} (x, x, x) }}", 23)
    assert sizes_of(without.graph[0], {"S": (1, 1)}) | {"past": (0, 0), "length": (1, 1)} == sizes_of(
        without.graph[0], {"S": (1, 1)}
    )
