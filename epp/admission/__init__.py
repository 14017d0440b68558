# SPDX-License-Identifier: Apache-2.0
"""Which requests run now: flow control, eviction, quotas and tenants."""
