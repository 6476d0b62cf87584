"""A layout as a recipe that launches it."""
