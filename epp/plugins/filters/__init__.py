"""Filters: which candidates may serve the request at all."""
