"""GPT-NeoX: keys that stand for Megatron's flags."""
