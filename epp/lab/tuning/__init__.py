# SPDX-License-Identifier: Apache-2.0
"""Tuning: the search for parameters and weights that serve a trace better."""
