"""Training frameworks, one folder each (its record in `framework.py`), and what they share beside the folders."""
