"""What a user describes: cluster, workload and layouts, as frozen values and as arrays of layouts."""
