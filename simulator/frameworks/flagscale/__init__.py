"""FlagScale: its own words beside Megatron-LM's."""
