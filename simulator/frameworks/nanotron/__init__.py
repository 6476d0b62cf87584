"""nanotron: `framework` reads the configuration files of its trainer."""
