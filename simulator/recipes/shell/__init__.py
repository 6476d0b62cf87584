"""Reading the shell scripts that start a training run, without running them."""
