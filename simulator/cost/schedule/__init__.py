"""Pipeline schedules: the order of passes, what is in flight, what the pipeline waits for."""
