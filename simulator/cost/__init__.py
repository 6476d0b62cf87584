"""What it costs: bytes and seconds of layouts, and both priced together."""
