"""Enumerating layouts and ranking them."""
