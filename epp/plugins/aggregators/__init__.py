"""Aggregators: what the results of several profiles add up to."""
