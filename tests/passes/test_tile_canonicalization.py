"""Tile becomes Expand only where what it repeats is proven to be single elements."""

from ortopt.api import optimize
from ortopt.testing import parse


def model(repeats: str, x: str, y: str, kind: str = "float") -> str:
    rank = x.count(",") + 1
    return f"main ({kind}[{x}] x) => ({kind}[{y}] y) <int64[{rank}] r = {{{repeats}}}> {{ y = Tile (x, r) }}"


def test_a_mean_beside_what_it_is_of() -> None:
    """As statistics pooling repeats it; where it is subtracted, it need not be repeated."""
    model = parse(
        """main (float[N,3,T] x) => (float[N,3,T] y) <int64[2] one = {1, 1}> {
            m = ReduceMean <axes = [2]> (x) t = Shape <start = 2> (x) r = Concat <axis = 0> (one, t) w = Tile (m, r)
            y = Sub (x, w)
        }""",
        opset=17,
    )
    result = optimize(model, level=1, verify=False).model
    assert [node.op_type for node in result.graph] == ["ReduceMean", "Sub"]
