"""Parsers: read from request bodies the few fields that routing needs."""
