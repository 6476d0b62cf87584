"""Hardware and model specs: their fields, and how they are located and read."""
