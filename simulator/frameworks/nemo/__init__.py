"""NeMo and Megatron-Bridge: `read` reads files and logs, `recipes` NeMo 2's Python recipes, `write` writes files."""
