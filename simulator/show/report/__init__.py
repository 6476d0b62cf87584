"""Answers as text: a module for each answer's tables, `as_json` and its neighbours for JSON.

`text` and `presentation` have what all share. A writer returns text; `cli.streams` writes it.
"""
