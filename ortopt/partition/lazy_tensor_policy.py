"""The policy of ONNX Runtime's lazy-tensor fuser, step by step, and fast.

The procedure: the list of nodes is walked from its end. At each node that can be fused its producers are tried, the one
that stands last in the list first. A producer of the same color is moved in front of the node, and what depends on it
behind the node, unless the node depends on that. Both are then fused if their arguments together are within the limit
(a fused node takes each value once; of any other all operands count, as in the fuser, weights apart), and the new node
is scanned again; otherwise the move stands and the next producer is tried. The walk is repeated until nothing fuses.

So the partition depends on the order of the list, which the moves change, and this follows it to the letter; the slow
version to compare with is in the tests. What makes it fast:

- the list is linked and its places are labels with gaps between them, so that "before" is a comparison and a move
  changes one label;
- only what depends on the producer and stands before the node is searched (as Pearce and Kelly do), not all that stands
  between them; and at the same time what the node depends on, so that a way from one to the other is found soon;
- readers and arguments are kept for clusters, and change with the producer's arguments only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from ortopt.cancellation import NEVER, CancellationToken
from ortopt.partition.cost import HOST
from ortopt.partition.dag import Dag

_GAP = 1 << 256
"""Between neighbours at first; a move to the same place divides it by one more than what is moved."""


class _Order:
    """A list in which "before" is a comparison of labels, and a move is cheap.

    Args:
        count: It begins as 0, 1, ... count - 1.
        token: Who may stop the making of it.
    """

    def __init__(self, count: int, token: CancellationToken = NEVER) -> None:
        self._end = count  # a sentinel in the ring
        self.next = [*range(1, count + 1), 0]
        self.previous = [count, *range(count)] if count else [0]
        self.label = [_GAP * (place + 1) for place in token.checked(range(count + 1))]

    def last(self) -> int | None:
        """The last element, or None in an empty list."""
        return self.before(self._end)

    def before(self, element: int) -> int | None:
        """The element before another one, or None."""
        element_before = self.previous[element]
        return None if element_before == self._end else element_before

    def __iter__(self) -> Iterator[int]:
        """From the last to the first."""
        element = self.last()
        while element is not None:
            yield element
            element = self.before(element)

    def remove(self, element: int) -> None:
        """Take an element out."""
        before, after = self.previous[element], self.next[element]
        self.next[before], self.previous[after] = after, before

    def insert_after(self, elements: Sequence[int], place: int) -> None:
        """Put elements that are out of the list behind another one, at even distances."""
        after = self.next[place]
        low = 0 if place == self._end else self.label[place]
        high = self.label[after] if after != self._end else low + (len(elements) + 1) * _GAP
        step = (high - low) // (len(elements) + 1)
        for element in elements:
            self.next[place], self.previous[element] = element, place
            low += step
            self.label[element] = low
            place = element
        self.next[place], self.previous[after] = after, place
        if not step:
            self._relabel()

    def insert_before(self, element: int, place: int) -> None:
        """Put an element that is out of the list in front of another one."""
        self.insert_after((element,), self.previous[place])

    def _relabel(self) -> None:
        element, label = self.next[self._end], _GAP
        while element != self._end:
            self.label[element] = label
            element, label = self.next[element], label + _GAP


class _Fuser:
    """Clusters that grow; each bears the number of the item that it began with, its last consumer."""

    def __init__(self, dag: Dag, limit: int, token: CancellationToken) -> None:
        self._colors = dag.colors
        self._limit = limit
        self._wanted = dag.wanted
        self._writer = list(dag.writer)
        self._readers = [set(items) for items in token.checked(dag.readers)]
        self._taken = [set(values) for values in token.checked(dag.reads)]
        self._given = [
            {value for value in values if self._readers[value] or value in dag.wanted}
            for values in token.checked(dag.writes)
        ]
        self._operands = list(dag.operands)
        self._members: list[list[int]] = [[item] for item in range(len(dag))]
        self._order = _Order(len(dag), token)
        self._token = token

    def run(self) -> list[list[int]]:
        token, changed = self._token, True
        while changed:
            changed = False
            at = self._order.last()
            for _ in token.checked(itertools.count()):
                if at is None:
                    break
                if self._scan(at):
                    changed = True
                else:
                    at = self._order.before(at)
        clusters = [sorted(self._members[at]) for at in token.checked(self._order) if self._colors[at] != HOST]
        return clusters[::-1]

    def _scan(self, consumer: int) -> bool:
        """Try the producers of a cluster; whether one was fused into it."""
        color = self._colors[consumer]
        if color == HOST:
            return False
        writer, colors, label = self._writer, self._colors, self._order.label
        producers = {writer[value] for value in self._taken[consumer]}
        producers.discard(-1)
        for producer in sorted(producers, key=lambda cluster: -label[cluster]):
            if colors[producer] != color or not self._move_before(producer, consumer):
                continue
            if self._arguments(consumer) + self._arguments(producer) <= self._limit:
                self._fuse(consumer, producer)
                return True
        return False

    def _arguments(self, cluster: int) -> int:
        """How many values a cluster takes and gives; a node that is none yet has a value twice that it reads twice."""
        alone = len(self._members[cluster]) == 1
        return (self._operands[cluster] if alone else len(self._taken[cluster])) + len(self._given[cluster])

    def _move_before(self, producer: int, consumer: int) -> bool:
        """Bring a producer in front of its consumer, and what depends on it behind; whether that can be."""
        order = self._order
        if order.next[producer] == consumer:
            return True
        dependent = self._between(producer, consumer)
        if dependent is None:
            return False
        order.remove(producer)
        order.insert_before(producer, consumer)
        moved = sorted(dependent, key=order.label.__getitem__)
        for cluster in moved:
            order.remove(cluster)
        if moved:
            order.insert_after(moved, consumer)
        return True

    def _between(self, producer: int, consumer: int) -> set[int] | None:
        """What depends on a producer and stands before its consumer; None where the consumer depends on it.

        Searched from both ends by turns: a way is mostly found soon from one of them, seldom from the same.
        """
        label, given, taken = self._order.label, self._given, self._taken
        readers, writer = self._readers, self._writer
        first, last = label[producer], label[consumer]
        dependent: set[int] = set()
        forward = [producer]
        needed: set[int] = set()
        backward = [consumer]
        patience = 0
        while forward:
            cluster = forward.pop()
            patience += sum(len(readers[value]) for value in given[cluster])  # as much as the step forward will cost
            while backward and patience >= len(taken[backward[-1]]):
                behind = backward.pop()
                patience -= len(taken[behind])
                for value in taken[behind]:
                    other = writer[value]
                    if other == producer and behind != consumer:
                        return None
                    if other != -1 and label[other] > first and other not in needed:
                        needed.add(other)
                        backward.append(other)
            for value in given[cluster]:
                if cluster != producer and consumer in readers[value]:
                    return None
                for reader in readers[value]:
                    if label[reader] < last and reader not in dependent:
                        dependent.add(reader)
                        forward.append(reader)
        return dependent

    def _fuse(self, consumer: int, producer: int) -> None:
        taken, given, readers = self._taken[consumer], self._given[consumer], self._readers
        for value in self._taken[producer]:
            readers[value].discard(producer)
            readers[value].add(consumer)
            taken.add(value)
        for value in self._given[producer]:
            self._writer[value] = consumer
            readers[value].discard(consumer)
            taken.discard(value)
            if readers[value] or value in self._wanted:
                given.add(value)
        self._members[consumer] += self._members[producer]
        self._members[producer] = []
        self._order.remove(producer)


def clusters(dag: Dag, *, limit: int, token: CancellationToken = NEVER) -> list[list[int]]:
    """Cut a graph into clusters as the fuser does.

    Args:
        dag: The graph; what has the host's color cannot be fused.
        limit: How many values two clusters may take and give together to be fused.
        token: Cancellation token.

    Returns:
        The clusters in a topological order, each with its items in ascending order; single items are clusters too.
    """
    return _Fuser(dag, limit, token).run()
