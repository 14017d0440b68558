# SPDX-License-Identifier: Apache-2.0
"""Accelerators: bounds and preferences of requests, and filters by the hardware of endpoints."""
