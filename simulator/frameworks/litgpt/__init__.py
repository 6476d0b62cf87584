"""LitGPT: finetuning and pretraining by a file of keys."""
