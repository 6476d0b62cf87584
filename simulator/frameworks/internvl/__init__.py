"""InternVL and LLaVA: their training programs, by translation into the words of Hugging Face's Trainer."""
