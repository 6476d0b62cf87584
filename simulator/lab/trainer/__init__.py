"""The reference trainer: a small decoder trained for a few steps, to be measured. Only it and `trace` need torch."""
