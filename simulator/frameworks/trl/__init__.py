"""TRL: `framework` reads its scripts, and those that train with Hugging Face's Trainer as its scripts do."""
