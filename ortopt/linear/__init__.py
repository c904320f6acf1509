"""Linear ops, whatever they are called, and what folds into their constants.

A pass says which op stands before or behind, and what that does to the channels; reading weights, scaling, shifting and
composing them, and refusing where a number would be lost, is here.
"""
