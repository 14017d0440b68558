# SPDX-License-Identifier: Apache-2.0
"""Tenants: who sends a request, by its API key, its namespace or its fairness id."""
