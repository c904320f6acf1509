"""Concats along one axis are one."""

from ortopt.testing import check_rewrites

PASS = "concat_merging"


def test_a_long_chain_stays_cheap() -> None:
    links = "".join(f"v{i + 1} = Concat <axis = 0> (v{i}, x) " for i in range(400))
    check_rewrites(
        PASS,
        f"main (float[1] x) => (float[401] y) {{ v0 = Concat <axis = 0> (x) {links} y = Identity (v400) }}",
        ops={"Concat": 2},
    )
