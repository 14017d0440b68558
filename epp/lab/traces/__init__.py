# SPDX-License-Identifier: Apache-2.0
"""Traces of traffic: readers of published formats, statistics, and generators."""
