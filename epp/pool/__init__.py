# SPDX-License-Identifier: Apache-2.0
"""The endpoints of the pool and their state: discovery, polls, clusters, caches, tokens, predictions."""
