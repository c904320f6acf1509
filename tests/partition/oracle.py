"""The fuser's procedure as it is told: a plain list, each dependency searched for anew. Slow, and hard to get wrong."""

from __future__ import annotations

from ortopt.partition.dag import Dag


class Unit:
    """A node of the list: some items of the graph."""

    def __init__(self, dag: Dag, items: set[int]) -> None:
        self.items = items
        self.color = dag.colors[min(items)]
        self.taken = {v for item in items for v in dag.reads[item] if dag.writer[v] not in items}
        (first, *others) = items
        self.arguments = len(self.taken) if others else dag.operands[first]
        self.given = {
            v
            for item in items
            for v in dag.writes[item]
            if v in dag.wanted or any(reader not in items for reader in dag.readers[v])
        }

    def reads_from(self, other: Unit) -> bool:
        return not self.taken.isdisjoint(other.given)


def clusters(dag: Dag, limit: int) -> set[frozenset[int]]:
    """The partition: sets of items; those that cannot be fused are in none."""
    order = [Unit(dag, {item}) for item in range(len(dag))]
    changed = True
    while changed:
        changed = False
        at = order[-1] if order else None
        while at is not None:
            fused = scan(dag, order, at, limit)
            if fused is not None:
                changed = True
                at = fused
            else:
                place = order.index(at)
                at = order[place - 1] if place else None
    return {frozenset(unit.items) for unit in order if unit.color}


def scan(dag: Dag, order: list[Unit], consumer: Unit, limit: int) -> Unit | None:
    if not consumer.color:
        return None
    for producer in [unit for unit in reversed(order) if consumer.reads_from(unit)]:
        if producer.color != consumer.color or not move_before(order, producer, consumer):
            continue
        sizes = [unit.arguments + len(unit.given) for unit in (producer, consumer)]
        if sum(sizes) > limit:
            continue
        fused = Unit(dag, producer.items | consumer.items)
        order[order.index(consumer)] = fused
        order.remove(producer)
        return fused
    return None


def move_before(order: list[Unit], producer: Unit, consumer: Unit) -> bool:
    between = order[order.index(producer) + 1 : order.index(consumer)]
    dependent: list[Unit] = []
    for unit in between:
        if any(unit.reads_from(other) for other in [producer, *dependent]):
            dependent.append(unit)
    if any(consumer.reads_from(unit) for unit in dependent):
        return False
    for unit in [producer, *dependent]:
        order.remove(unit)
    place = order.index(consumer)
    order[place : place + 1] = [producer, consumer, *dependent]
    return True
