"""ms-swift, on Hugging Face's Trainer and on Megatron-LM."""
