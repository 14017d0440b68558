# SPDX-License-Identifier: Apache-2.0
"""Evaluation of placements, as the hub does it; pure functions."""
