"""A platform's rates measured, and the few launches that identify its coefficients."""
