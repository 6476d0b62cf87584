"""Measured rows and logs, and the coefficients and errors that follow from them."""
