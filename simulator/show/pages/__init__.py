"""Answers as one HTML file each, which loads nothing from elsewhere.

`layouts` and `answers` compose pages, `figures` draws, `page` writes the file; `notebook` has what a notebook shows.
"""
