"""Filters by labels, metrics and topology of endpoints."""
