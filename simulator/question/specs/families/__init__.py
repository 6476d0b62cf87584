"""Families of Hugging Face configurations: the keys of each `model_type` as fields of a spec."""
