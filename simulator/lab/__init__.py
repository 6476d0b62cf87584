"""Experiments: code that trains, launches, traces and measures for real, to test predictions.

Holds no formula of memory or time: what a run shows is compared with `cost`, never mixed into it. Only `trainer` and
`trace` import torch, so that everything else works without it.
"""
