"""Fitting the coefficients to measured runs, and saying how far off the result is."""
