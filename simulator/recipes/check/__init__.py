"""Check of a recipe against the cluster it is meant for, before it is launched."""
