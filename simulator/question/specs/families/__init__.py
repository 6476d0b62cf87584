"""Families of Hugging Face configurations, as data: `reading` makes a model's spec of the keys of each `model_type`."""
