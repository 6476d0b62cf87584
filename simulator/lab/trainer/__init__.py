"""Reference trainer: a small decoder trained for a few steps in PyTorch, to be measured.

An oracle for the formulas, which shares none of them: it may import specs and layouts, never `cost`.
"""
