"""Experiments that test predictions of `cost`: code that trains, launches, traces and measures for real."""
