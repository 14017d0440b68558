# SPDX-License-Identifier: Apache-2.0
"""Measured rows: one module per group."""
