# SPDX-License-Identifier: Apache-2.0
"""Polling of endpoints: when each is polled for each feed, within a budget, and the reachability of endpoints."""
