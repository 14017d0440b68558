# SPDX-License-Identifier: Apache-2.0
"""Metrics pages of inference engines: names of series, and reading them into columns."""
