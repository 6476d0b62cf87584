"""open-instruct, on accelerate."""
