# SPDX-License-Identifier: Apache-2.0
"""Prefix cache: how much of a prompt each endpoint is expected to hold in its KV cache."""
