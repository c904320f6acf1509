"""Maps of chains that are spelled in several ways, with sizes that are not numbers, and what no map says."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortopt.framework.workspace import Workspace
from ortopt.graph.match import Refusal
from ortopt.options import Options
from ortopt.testing import parse
from ortopt.views.index_map import IndexMap, Part, identity, narrowed, part_along, same
from ortopt.views.reading import maps, through

LONG = 2**63 - 1


def model(x: str, constants: str, body: str) -> ir.Model:
    text = f"main (float[{x}] x) => (float[] y) <{constants}> {{ {body} y = Neg (r) }}"
    return Workspace(parse(text), Options()).model


def read(x: str, constants: str, body: str) -> IndexMap:
    """The map of r from x."""
    made = model(x, constants, body)
    source, value = made.graph.inputs[0], made.graph.outputs[0].producer().inputs[0]
    return next(found for found in maps(value) if found.source is source)


def alike(one: IndexMap, other: IndexMap) -> bool:
    """Whether two maps, of inputs of two models, are the same."""
    return same(IndexMap(other.source, one.shape, one.groups, one.starts), other)


SPELLINGS = [
    ("N,6,4,8", "int64[3] s = {0, 24, 8}", "r = Reshape (x, s)", "int64[4] s = {0, 2, -1, 8}, int64[3] t = {0, -1, 8}", "u = Reshape (x, s) r = Reshape (u, t)"),  # noqa: E501
    ("N,4,M", "", "r = Transpose <perm = [1, 0, 2]> (x)", "int64[1] a = {0}, int64[1] b = {2}", "u = Unsqueeze (x, a) t = Transpose <perm = [2, 1, 0, 3]> (u) r = Squeeze (t, b)"),  # noqa: E501
    ("N,6", "int64[1] a = {2}, int64[1] e = {4}, int64[1] i = {1}", "r = Slice (x, a, e, i)", "int64[2] g = {2, 3}", "r = Gather <axis = 1> (x, g)"),  # noqa: E501
    ("N,6", "int64[2] g = {5, 3}", "r = Gather <axis = -1> (x, g)", f"int64[1] a = {{-1}}, int64[1] e = {{2}}, int64[1] i = {{1}}, int64[1] s = {{-2}}", "r = Slice (x, a, e, i, s)"),  # noqa: E501, F541
    ("N,4,6,8", "", "r = SpaceToDepth <blocksize = 2> (x)", "int64[6] s = {0, 4, 3, 2, 4, 2}, int64[4] t = {0, 16, 3, 4}", "u = Reshape (x, s) v = Transpose <perm = [0, 3, 5, 1, 2, 4]> (u) r = Reshape (v, t)"),  # noqa: E501
    ("N,2,3", "int64[2] e = {4, 1}, int64[4] s = {0, 1, 2, 3}, int64[4] w = {1, 5, 1, 1}", "u = Reshape (x, s) r = Expand (u, w)", "int64[1] a = {1}, int64[5] g = {0, 0, 0, 0, 0}", "u = Unsqueeze (x, a) r = Gather <axis = 1> (u, g)"),  # noqa: E501
]  # fmt: skip


@pytest.mark.parametrize(("x", "constants", "body", "other_constants", "other"), SPELLINGS)
def test_spellings_have_one_map(x: str, constants: str, body: str, other_constants: str, other: str) -> None:
    assert alike(read(x, constants, body), read(x, other_constants, other))


def test_blocks_that_slices_take_are_those_of_space_to_depth() -> None:
    numbers = ", ".join(f"int64[2] s{row}{column} = {{{row}, {column}}}" for row in range(2) for column in range(2))
    lists = f"{numbers}, int64[2] e = {{{LONG}, {LONG}}}, int64[2] a = {{2, 3}}, int64[2] t = {{2, 2}}"
    slices = " ".join(f"p{at} = Slice (x, s{at}, e, a, t)" for at in ("00", "01", "10", "11"))
    found = read("N,3,4,6", lists, f"{slices} r = Concat <axis = 1> (p00, p01, p10, p11)")
    assert alike(found, read("N,3,4,6", "", "r = SpaceToDepth <blocksize = 2> (x)"))
    turned = read("N,3,4,6", lists, f"{slices} r = Concat <axis = 1> (p00, p10, p01, p11)")
    assert not alike(turned, found)


@pytest.mark.parametrize(
    ("x", "constants", "body"),
    [
        ("N,6", "int64[3] g = {0, 1, 3}", "r = Gather <axis = 1> (x, g)"),
        ("N,4", "int64[2] g = {0, 4}", "r = Gather <axis = 1> (x, g)"),
        ("2,3", "int64[2] s = {2, 3}", "t = Transpose <perm = [1, 0]> (x) r = Reshape (t, s)"),
        ("N,4", "int64[1] s = {-3}, int64[1] e = {-1}, int64[1] a = {0}", "r = Slice (x, s, e, a)"),
        ("N,M", "", "r = Squeeze (x)"),
        ("2,4", "", "r = Relu (x)"),
    ],
)
def test_what_is_no_map(x: str, constants: str, body: str) -> None:
    made = model(x, constants, body)
    value = made.graph.outputs[0].producer().inputs[0]
    assert made.graph.inputs[0] not in [found.source for found in maps(value)]


def test_parts_of_an_axis() -> None:
    bounds = "int64[1] s = {1}, int64[1] e = {3}, int64[1] a = {1}, int64 one = {-1}"
    assert part_along(read("N,6,M", bounds, "r = Slice (x, s, e, a)"), 1) == Part(1, 3, drops=False)
    assert part_along(read("N,6,M", bounds, "r = Gather <axis = 1> (x, one)"), 1) == Part(5, 6, drops=True)
    with pytest.raises(Refusal, match="something else"):
        part_along(read("N,6,M", bounds, "t = Transpose <perm = [2, 1, 0]> (x) r = Slice (t, s, e, a)"), 1)


def test_columns_that_are_taken() -> None:
    shapes = "int64[4] s = {0, 0, 2, 3}, int64 one = {1}, int64[1] b = {1}, int64[1] e = {3}, int64[1] a = {3}"
    columns, own = narrowed(read("N,M,6", shapes, "u = Reshape (x, s) r = Gather <axis = 3> (u, one)"))
    assert columns == (1, 4)
    assert alike(own, read("N,M,2", "", "r = Identity (x)"))
    turned = "u = Reshape (x, s) v = Slice (u, b, e, a) r = Transpose <perm = [0, 2, 1, 3]> (v)"
    columns, own = narrowed(read("N,M,6", shapes, turned))
    assert columns == (1, 2, 4, 5)
    half = "int64[4] s = {0, 0, 2, 2}"
    assert alike(own, read("N,M,4", half, "u = Reshape (x, s) r = Transpose <perm = [0, 2, 1, 3]> (u)"))
    with pytest.raises(Refusal, match="the places are not known"):
        narrowed(read("N,2,M", "", "r = Identity (x)"))


def test_a_rank_alone_is_enough_for_transposes() -> None:
    text = "(float[] x) => (float[] y) { t = Transpose <perm = [1, 2, 0]> (x) u = Transpose <perm = [2, 0, 1]> (t) "
    made = parse(f"main {text} y = Neg (u) }}")
    first, second, _ = made.graph
    assert through(made.graph.inputs[0], first, second, rank=3).is_identity
    with pytest.raises(Refusal, match="unknown"):
        identity(made.graph.inputs[0])
