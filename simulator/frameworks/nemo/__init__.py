"""NeMo and Megatron-Bridge: keys that stand for Megatron's flags."""
