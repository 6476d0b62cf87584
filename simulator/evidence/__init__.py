"""What was measured: rows, logs, and the coefficients and errors that follow from them."""
