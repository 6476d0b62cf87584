"""Bytes per device: what the tensors take at the peak and what lies outside the allocator."""
