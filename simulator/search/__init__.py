"""Search for layouts.

`space` makes them, `rules` drops those that cannot run, `rank` finds the fastest that fit, `build` makes estimates;
`fewest` and `alternatives` ask further, `query` has the records.
"""
