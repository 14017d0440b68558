# SPDX-License-Identifier: Apache-2.0
"""Tests and their helpers."""
