# SPDX-License-Identifier: Apache-2.0
"""Measured rows: a module for each group."""
