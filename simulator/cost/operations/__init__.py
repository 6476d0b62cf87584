"""Layers as lists of operations, with the weights, saved tensors, products, traffic and collectives of each.

`record` is one operation, `attention`, `recurrent`, `feed_forward` and `blocks` list them, `layer` joins the lists,
`recompute` and `offload` choose from one, `sums` adds up.
"""
