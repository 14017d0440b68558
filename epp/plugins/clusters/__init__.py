# SPDX-License-Identifier: Apache-2.0
"""Filters of endpoints by their clusters."""
