# SPDX-License-Identifier: Apache-2.0
"""Objects of a cluster: one module for each API, and their decoding."""
