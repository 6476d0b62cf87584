"""Memory of a device in bytes, and of its node's host (`host`).

`state`, `activations`, `loss` and `outside` have its parts, `moments` says when each is alive, `peak` takes the largest
sum; `fully_shard` replays FSDP2.
"""
