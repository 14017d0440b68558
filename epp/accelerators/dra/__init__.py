"""Dynamic resource allocation (DRA): pools of devices, and devices allocated to an endpoint."""
