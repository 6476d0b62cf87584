"""Measured runs and what follows from them."""
