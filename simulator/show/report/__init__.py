"""Estimates and rankings as text: tables, Markdown, CSV and JSON. Reports return text and never print."""
