"""What chains of moves compute, as maps, and the cheapest chains that compute the same.

A move is a node that only puts elements elsewhere: Reshape, Transpose, Slice, Gather by constants, Concat …
`reading` says which element of a source each element of a value is, `index_map` composes and compares such maps, and
`emission` builds one as few nodes. A spelling is recognised because its map is.
"""
