"""TRL, and scripts that train with Hugging Face's Trainer as its scripts do."""
