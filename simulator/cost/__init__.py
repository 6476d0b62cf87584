"""Bytes and seconds of layouts, by formulas over arrays of them."""
