"""Measured runs: the shipped tables, the user's own logs, and the question each row asks of the simulator."""
