"""LLaVA: its training program, by translation into the words of Hugging Face's Trainer."""
