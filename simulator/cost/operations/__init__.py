"""A layer as a list of operations: each shape of weights, kept tensors, products, traffic and collectives, once."""
