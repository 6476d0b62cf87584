"""Recipes: the launch scripts and configurations of users.

`readers` and `shell` read them, `check` judges them, `emit` writes them, `logs` makes measured rows of logs;
`frameworks` knows the words.
"""
