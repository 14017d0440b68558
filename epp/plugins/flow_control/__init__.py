# SPDX-License-Identifier: Apache-2.0
"""Policies of flow control: which request and which flow is next, and how full endpoints may be for a priority."""
