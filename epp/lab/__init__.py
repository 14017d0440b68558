# SPDX-License-Identifier: Apache-2.0
"""Simulated servers, the demo, and a picker with an Envoy in front of it."""
