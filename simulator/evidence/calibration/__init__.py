"""Fits of coefficients to measured runs, and the ranges of predictions."""
