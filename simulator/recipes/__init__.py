"""Launch scripts and configurations: read, checked, written."""
