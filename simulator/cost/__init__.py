"""Bytes and seconds of layouts, by formulas over arrays of them.

`operations` lists a layer's work, `memory` and `timing` sum it, `schedule` has the pipeline, `pricing` joins both into
an estimate.
"""
