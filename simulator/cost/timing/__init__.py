"""Seconds of an optimizer step, by roofline, the real topology and the pipeline's schedule.

`products` and `layers` have a layer's seconds, `collectives` an exchange's, `pipeline` those of ranks together,
`data_parallel` those of gradients; `step` adds them up.
"""
