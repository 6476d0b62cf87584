"""Answers as text: a module for each answer's tables, `as_json` and its neighbours for JSON."""
