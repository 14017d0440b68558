# SPDX-License-Identifier: Apache-2.0
"""Scores that outside scorers compute, asked for in the background and joined to endpoints."""
