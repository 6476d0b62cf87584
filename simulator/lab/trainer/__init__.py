"""Reference trainer: a small decoder trained for a few steps in PyTorch, to be measured.

It is an oracle for the formulas and shares none of them: it may import specs and layouts, never `cost`.
"""
