"""Measurement of a machine: `rates` has its rates, `run` the few launches that tell its coefficients apart."""
