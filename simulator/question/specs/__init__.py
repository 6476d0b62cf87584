"""Specs of models, hardware, optimizers and stacks, read from files."""
