"""Megatron-Bridge's releases as data: what its recipes set by model, device and precision; `nemo` reads files.

`framework` reads launches of its performance scripts, which change such a recipe.
"""
