"""Pai-Megatron-Patch: its own words beside Megatron-LM's."""
