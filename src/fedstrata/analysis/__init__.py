"""Analyse finished runs: scores, statistics, findings, caveats and the conclusion; nothing here draws or prints."""
