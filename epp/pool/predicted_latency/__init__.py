# SPDX-License-Identifier: Apache-2.0
"""Predicted latency of requests, from rates of endpoints and measured responses, or from a prediction server."""
