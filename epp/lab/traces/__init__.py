# SPDX-License-Identifier: Apache-2.0
"""Traces of traffic: readers for published formats, statistics, and generators."""
