"""Imported last by the process that others are forked from: what it holds is in no collection of theirs.

A rank looks through all objects for tensors at each measured step; those of torch's own modules are half a million.
"""

import gc

gc.collect()
gc.freeze()
