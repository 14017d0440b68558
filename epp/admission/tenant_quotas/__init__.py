# SPDX-License-Identifier: Apache-2.0
"""Quotas of tenants, from a configuration and from objects of a cluster."""
