"""Fits of coefficients to measured runs, and the ranges of predictions.

`sample` prepares rows, `linear`, `cluster` and `own` fit, `store` has the file; `apply`, `uncertainty` and `ranges`
move an estimate by it.
"""
