"""Endpoint rates: how fast each endpoint computes, and the filter by expected latency."""
