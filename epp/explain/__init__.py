# SPDX-License-Identifier: Apache-2.0
"""Records of routing decisions, simulated requests, shadow profiles, and comparison of configurations."""
