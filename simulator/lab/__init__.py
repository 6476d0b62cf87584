"""What is run: the reference trainer, traces, launches, probes of a machine."""
