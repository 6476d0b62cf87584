"""Megatron-DeepSpeed: its own words beside Megatron-LM's."""
