"""Experiments that test predictions: code that trains, launches, traces and measures for real.

Formulas stand in `cost`; only `trainer` and `trace` import torch.
"""
