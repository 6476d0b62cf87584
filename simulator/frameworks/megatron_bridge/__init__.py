"""Megatron-Bridge's releases as data: what its recipes set by model, device and precision; `nemo` reads files."""
