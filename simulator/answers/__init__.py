"""Answers to a `Question` as frozen results: `ranking`, `plan`, `compare`, `explain`, `sweep` and others."""
