"""torchtitan: `read` reads its launches, files and logs, `write` writes files."""
