# SPDX-License-Identifier: Apache-2.0
"""Predicted latency of requests, from the rates of endpoints or from a prediction server."""
