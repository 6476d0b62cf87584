"""Pipeline schedules: `schedule` is the interface, `orders` has the schedules, `events` runs one pass by pass."""
