# SPDX-License-Identifier: Apache-2.0
"""The demo: simulated servers of different speeds, a gateway, and a live table of their load."""
