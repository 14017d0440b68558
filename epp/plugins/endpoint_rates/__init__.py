# SPDX-License-Identifier: Apache-2.0
"""Endpoint rates: how fast each endpoint computes, and the filter by expected latency."""
