"""Hardware and model specs: what they hold, and how they are found and read."""
