"""A layer as a list of operations: weights, saved tensors, products, traffic and collectives of each, stated once."""
