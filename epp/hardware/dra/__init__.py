# SPDX-License-Identifier: Apache-2.0
"""Dynamic resource allocation (DRA): pools of devices, and devices allocated to an endpoint."""
