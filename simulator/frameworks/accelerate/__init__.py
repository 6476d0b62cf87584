"""accelerate: `words` translates its options into the trainer's that it starts, `write` writes scripts of TRL."""
