"""ms-swift: `framework` translates its words into those of Megatron-LM or of Hugging Face's Trainer."""
