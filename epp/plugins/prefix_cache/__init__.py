# SPDX-License-Identifier: Apache-2.0
"""Prefix cache: the expected prompt blocks in the KV cache of each endpoint."""
