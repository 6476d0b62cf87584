"""Joining memory and time into an answer: verdicts and estimates."""
