"""Switches of training frameworks: `profile` has every switch with its meaning, `stacks` their values by source."""
