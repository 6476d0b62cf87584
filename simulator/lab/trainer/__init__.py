"""Reference trainer: a small decoder trained for a few steps in PyTorch, to be measured.

It tests the formulas of `cost` and shares none of them; `lab.runner` launches it.
"""
