"""One pipeline stage at full size on tensors that hold no data: the bytes alive in it, beside the predicted ones."""
