"""One pipeline stage built at full size with tensors that hold no data, and the bytes alive in it."""
