"""Metrics pages of inference engines: names of series, and reading them into columns."""
