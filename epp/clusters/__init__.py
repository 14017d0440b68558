# SPDX-License-Identifier: Apache-2.0
"""Clusters: what a hub says of them, and what this picker computes of it itself."""
