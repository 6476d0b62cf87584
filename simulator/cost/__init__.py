"""Bytes and seconds of layouts, and both priced together."""
