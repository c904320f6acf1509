"""Fusion groups: which nodes run together in one session, on which execution provider.

`partitioning` does all of it: `partition` (data only), `group` (in place). `groups` reads grouped models. Behind them:
`placement` asks who can run a node, `dag` shows a graph as numbers, `cost`, `balance` and `literal` cut it, `motions`
and `exemplars` change it so that groups grow and need less, `lifting` makes functions, `quotient` draws them.
docs/groups.md tells the file format.
"""
