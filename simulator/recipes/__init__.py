"""Recipes: the launch scripts and configurations of users."""
