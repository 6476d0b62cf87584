"""Experiments that test predictions: code that trains, launches, traces and measures for real.

`trainer` trains a small model, `runner` launches it or an outside framework, `trace` counts bytes without a device,
`probe` measures a machine. Formulas stand in `cost`; only `trainer` and `trace` import torch.
"""
