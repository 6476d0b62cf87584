"""Answers as one HTML file each, which loads nothing from elsewhere."""
