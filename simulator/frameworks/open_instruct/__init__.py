"""open-instruct: `framework` reads its files and launches, which accelerate starts."""
