"""accelerate, which starts others' scripts."""
