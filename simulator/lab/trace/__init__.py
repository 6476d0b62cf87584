"""Traces: one pipeline stage at full size on tensors without data, its live bytes beside the predicted ones."""
