"""Accelerators: bounds and preferences of requests, and filters by the hardware of endpoints."""
