"""Megatron-LM-das: Megatron-LM with models that Megatron-Bridge builds, those that read images among them."""
