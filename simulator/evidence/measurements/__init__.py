"""Measured runs: `rows` reads tables, `question` asks each row of the simulator; `recipes.logs` makes rows of logs."""
