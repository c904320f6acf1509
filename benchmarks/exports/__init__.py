"""Exports of small random models of many architectures, with what a human expects to find in them."""
