"""Launches of layouts, and the measured rows that they leave.

`campaign` makes several launches, `engine` one; `reference` and `outside` have the trainers, `processes` ends them.
"""
