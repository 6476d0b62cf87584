"""Pipeline schedules: order of passes, passes in flight, idle time."""
