"""Devices of dynamic resource allocation (DRA): pools, and devices allocated to an endpoint."""
