"""Fits of the coefficients to measured runs, and the ranges of predictions."""
