"""Training stacks, one folder each: what their words mean, read from a run and written for one."""
