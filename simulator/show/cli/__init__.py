"""The command line: options in, exit code out. What is heavy to import is imported inside the commands."""
