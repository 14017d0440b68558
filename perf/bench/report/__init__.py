# SPDX-License-Identifier: Apache-2.0
"""Figures of a run: the rows and their targets, samples, bench.json and tables."""
