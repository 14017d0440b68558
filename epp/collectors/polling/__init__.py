# SPDX-License-Identifier: Apache-2.0
"""Polling of endpoints: a task for each endpoint and feed, and the reachability of endpoints."""
