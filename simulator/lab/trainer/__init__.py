"""Reference trainer: a small decoder trained for a few steps in PyTorch; it shares no formula with `cost`."""
