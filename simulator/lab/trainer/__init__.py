"""Reference trainer: a small decoder trained for a few steps in PyTorch, to be measured.

`worker` trains a rank, `model` is the decoder, `watch` measures, `job` has what it is told and what it returns. It
tests the formulas of `cost` and shares none of them; `lab.runner` launches it.
"""
