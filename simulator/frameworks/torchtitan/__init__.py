"""torchtitan: the keys of its configuration."""
