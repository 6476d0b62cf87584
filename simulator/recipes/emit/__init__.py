"""Layouts as recipes that launch them: `write` picks the framework's writer, `patch` edits a recipe that is there."""
