"""Answers: what is asked above a layout, from a question to a frozen result."""
