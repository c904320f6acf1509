"""RNN, GRU, LSTM."""

from __future__ import annotations

from ortopt.analysis.shape_rules.registry import Call, Unknown, rule
from ortopt.graph.symbolic import UNKNOWN, Dim
from ortopt.semantics.domains import MICROSOFT


@rule("RNN", "GRU", "LSTM")
def recurrent(call: Call) -> None:
    """All hidden states [sequence, directions, batch, hidden], the last ones, and LSTM's last cells."""
    count = call.output_count()
    dtype = call.dtype(0)
    for index in range(count):
        call.types[index] = dtype
    direction = call.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    hidden: Dim | None = call.attribute("hidden_size")
    if hidden is None:
        recurrence = call.dims_or_none(2)
        hidden = UNKNOWN if recurrence is None else recurrence[-1]
    x = call.dims_or_none(0) or (UNKNOWN,) * 3
    if len(x) != 3:
        raise Unknown
    sequence, batch = x[0], x[1]
    if call.attribute("layout", 0):
        batch, sequence = sequence, batch
        call.set(0, dtype, (batch, sequence, directions, hidden))
        for index in range(1, count):
            call.set(index, dtype, (batch, directions, hidden))
        return
    call.set(0, dtype, (sequence, directions, batch, hidden))
    for index in range(1, count):
        call.set(index, dtype, (directions, batch, hidden))


@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def quantized_lstm(call: Call) -> None:
    """As LSTM."""
    recurrent(call)
