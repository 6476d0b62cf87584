"""Measurement of a machine: its rates, and the few launches that tell its coefficients apart."""
