"""Taggers: what discovery says of an endpoint, read into what is known of it."""
