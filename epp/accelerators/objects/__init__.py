# SPDX-License-Identifier: Apache-2.0
"""Cluster objects, as far as they bear on accelerators: one module for each API, and their decoding."""
