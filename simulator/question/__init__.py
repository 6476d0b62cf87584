"""Inputs of a question as frozen values, and their parts.

`question` says who said each value; `scenario` has cluster, workload and layouts, `specs` models and hardware,
`frameworks` switches and stacks, `coefficients` the numbers that runs decide, `units` and `vocabulary` the words.
"""
