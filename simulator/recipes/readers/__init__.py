"""Reading of launch scripts and configuration files without running them."""
