"""Families of Hugging Face configurations: each reader turns the keys of one `model_type` into fields of a spec."""
