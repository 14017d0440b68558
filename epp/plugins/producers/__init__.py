"""Producers: what is computed once for each request and shared by filters and scorers."""
