"""Memory per device in bytes: tensors alive at the peak, and memory outside the allocator."""
