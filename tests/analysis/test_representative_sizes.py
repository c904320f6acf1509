"""Sizes at which forms are compared: those that are expected, else representative ones."""

from __future__ import annotations

import pytest

from ortopt.analysis.dimensions import check_names
from ortopt.analysis.node_sizes import representative_places, representative_sizes
from ortopt.errors import UsageError
from ortopt.testing import parse

DECODER = """main (int64[batch,seq] ids, float[batch,2,past_sequence_length,4] k, float[batch,past_plus_seq] mask)
    => (int64[batch,seq] y) { y = Neg (ids) }"""
TEXT = "main (int64[batch,seq] ids) => (int64[batch,seq] y) { y = Neg (ids) }"


SIZES = {
    "an encoder": (
        "main (int64[batch,seq] ids, int64[batch,seq] mask) => (int64[batch,seq] y) { y = Add (ids, mask) }",
        [{"batch": 1, "seq": 16}, {"batch": 1, "seq": 128}],
    ),
    "a decoder with its cache": (
        """main (int64[batch,seq] ids, int64[batch,past_plus_seq] mask, float[batch,2,past,4] k)
            => (float[batch,2,past,4] y) { y = Neg (k) }""",
        [{"batch": 1, "seq": 1, "past": 128}, {"batch": 1, "seq": 128, "past": 0}],
    ),
    "an image": ("main (float[N,3,H,W] x) => (float[N,3,H,W] y) { y = Neg (x) }", [{"N": 1, "H": 224, "W": 224}]),
    "a signal": ("main (float[B,T] x) => (float[B,T] y) { y = Neg (x) }", [{"B": 1, "T": 16000}]),
    "fixed sizes": ("main (float[1,3] x) => (float[1,3] y) { y = Neg (x) }", [{}]),
}


@pytest.mark.parametrize("case", SIZES)
def test_representative_sizes(case: str) -> None:
    text, sizes = SIZES[case]
    assert representative_sizes(parse(text), {}) == sizes


def test_sizes_that_were_chosen_stay() -> None:
    assert representative_sizes(parse(TEXT), {"seq": 7}) == [{"batch": 1, "seq": 7}]


def test_both_ends_of_what_is_expected_are_timed() -> None:
    sizes = representative_sizes(parse(TEXT), {"batch": 2}, {"seq": (1, 64)})
    assert sizes == [{"batch": 2, "seq": 1}, {"batch": 2, "seq": 64}]


def test_what_is_expected_in_a_range_is_asked_for_as_one() -> None:
    assert representative_places(parse(TEXT), {"seq": (1, 64)}) == ({"batch": (1, 1), "seq": (1, 64)},)
    assert representative_places(parse(TEXT), {}) == tuple({"batch": (1, 1), "seq": (n, n)} for n in (16, 128))


def test_a_decoder_is_asked_for_at_decode_and_at_prefill_with_the_sums_of_its_sizes() -> None:
    model = parse(DECODER.replace("past_plus_seq", "past_sequence_length_plus_seq"))
    decode, prefill = representative_places(model, {})
    assert decode["past_sequence_length_plus_seq"] == (129, 129)
    assert prefill["past_sequence_length_plus_seq"] == (128, 128)


def test_a_model_without_symbols_is_asked_for_once() -> None:
    assert representative_places(parse("main (float[2] x) => (float[2] y) { y = Neg (x) }"), {}) == ({},)


def test_a_name_that_no_dimension_has() -> None:
    with pytest.raises(UsageError, match=r"no input has a dimension named sq; the names: batch, seq"):
        check_names(parse(TEXT), ["seq", "sq"])
