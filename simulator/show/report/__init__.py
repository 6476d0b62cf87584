"""Answers as text: tables, Markdown, CSV, JSON and what CI reads. A writer returns text; `cli.streams` writes it."""
