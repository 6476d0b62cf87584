"""InternVL: its training programs, by translation into the words of Hugging Face's Trainer."""
