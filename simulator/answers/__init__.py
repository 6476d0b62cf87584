"""Answers to a `Question` as frozen results: `ranking`, `plan`, `compare`, `explain`, `sweep` and others.

`search` and `cost` have the figures below them, `show` writes the results.
"""
