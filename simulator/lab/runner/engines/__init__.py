"""Outside frameworks as engines of a launch: the recipe of `simulate emit`, run as it is, and its log read."""
