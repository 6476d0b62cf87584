"""Framework profiles: switches of each training framework for memory and overlap, with its limits and stacks."""
