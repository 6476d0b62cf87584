"""What is shown: tables, JSON, and the command line."""
