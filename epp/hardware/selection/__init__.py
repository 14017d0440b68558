# SPDX-License-Identifier: Apache-2.0
"""Bounds and preferences of a request for accelerators: configuration, objects of the cluster, and headers."""
