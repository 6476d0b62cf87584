"""DeepSpeed: `configuration` reads the file that says how an engine of DeepSpeed shards and offloads."""
