"""Launches of layouts, and the measured rows that they leave."""
