"""Memory and time joined: `price` prices blocks of layouts with their verdicts, `estimate` is the record of one."""
