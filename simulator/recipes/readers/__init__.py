"""Reading launch scripts and configuration files of training frameworks, without running them."""
