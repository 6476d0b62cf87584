"""oumi."""
