"""Scenarios as a user describes them: cluster, workload and layouts, as frozen values and as arrays of layouts."""
