"""Megatron-LM: `read` and `special` read its launches, `framework` its logs, `write` writes scripts of it."""
