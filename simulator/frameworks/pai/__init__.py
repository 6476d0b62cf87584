"""Pai-Megatron-Patch: `framework` registers a table of its flags beside Megatron-LM's."""
