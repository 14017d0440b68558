# SPDX-License-Identifier: Apache-2.0
"""Scores of outside scorers, requested in the background and joined to endpoints."""
