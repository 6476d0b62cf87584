"""Presentation of answers: tables, JSON, pages, and the command line."""
