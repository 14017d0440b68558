"""Parsers: request bodies read into the few fields that routing needs."""
