"""Sweeps: the best layout of every question of a product of lists, over processes of one machine or of many."""
