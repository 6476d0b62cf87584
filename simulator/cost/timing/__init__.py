"""Seconds per optimizer step: work by roofline, collectives on the real topology, the pipeline's schedule."""
