"""Megatron-DeepSpeed: `framework` reads what its DeepSpeed engine adds to Megatron-LM's flags."""
