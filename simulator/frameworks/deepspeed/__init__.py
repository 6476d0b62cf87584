"""DeepSpeed: the keys of its configuration."""
