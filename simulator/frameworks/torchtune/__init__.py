"""torchtune: `framework` reads its configuration files."""
