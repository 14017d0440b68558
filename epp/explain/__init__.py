# SPDX-License-Identifier: Apache-2.0
"""Decisions: why each request went where it went, as a record that outlives it."""
