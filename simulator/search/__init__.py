"""Enumeration and ranking of layouts."""
