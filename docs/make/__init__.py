"""What makes parts of the documentation from the code."""
