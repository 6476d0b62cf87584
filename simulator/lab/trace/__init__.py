"""Traces of a pipeline stage at full size: `stage` counts bytes on tensors without data, `tracing` compares them."""
