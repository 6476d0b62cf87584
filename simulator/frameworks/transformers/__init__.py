"""Hugging Face's Trainer, TRL and accelerate, and DeepSpeed-Chat."""
