"""Seconds of an optimizer step, by roofline, the real topology and the pipeline's schedule."""
