"""Hugging Face's Trainer: `read` prices its words, for every framework that trains with it. `trl` has its scripts."""
