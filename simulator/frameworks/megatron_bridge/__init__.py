"""Releases of Megatron-Bridge: what its performance recipes set for each model, device and precision."""
