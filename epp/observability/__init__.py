"""Metrics, the operator page and logs of a picker."""
