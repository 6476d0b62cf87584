"""Memory and time joined into an answer: verdicts and estimates."""
