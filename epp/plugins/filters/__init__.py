# SPDX-License-Identifier: Apache-2.0
"""Filters by labels, metrics and topology of endpoints."""
