# SPDX-License-Identifier: Apache-2.0
"""Bounds and preferences of a request for accelerators, from configuration, cluster objects and headers."""
