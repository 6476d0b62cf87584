"""Inputs of a question as frozen values, and their parts."""
