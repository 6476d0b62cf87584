"""Megatron-LM: the words of its command line, of its YAML files and of its logs."""
