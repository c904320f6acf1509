"""Random valid models, mutated real ones, faults and broken files: what ortopt must survive, at scale.

``python -m fuzzing --seed N --count M`` draws models, optimizes each at every level and compares; see `campaign`.
"""
