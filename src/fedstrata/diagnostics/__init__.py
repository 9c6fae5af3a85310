"""Diagnostics: measures of a round of training and of its models, which never change a run."""
