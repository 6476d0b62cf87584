"""Presentation of answers.

`cli` is the command line, `report` writes text, tables and JSON, `pages` HTML; `forms` lists the forms of each answer.
"""
