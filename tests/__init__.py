# SPDX-License-Identifier: Apache-2.0
"""Tests, and what they share in `support`."""
