"""Answers as one file for a browser: figures, sortable tables, what they rest on. Nothing is loaded from elsewhere."""
