"""Measured runs and what follows from them.

`measurements` reads their rows, `calibration` fits coefficients to them and gives predictions their ranges, `cluster`
reads the name of a cluster.
"""
