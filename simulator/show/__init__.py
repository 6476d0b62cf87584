"""Presentation of answers."""
