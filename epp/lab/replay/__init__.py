# SPDX-License-Identifier: Apache-2.0
"""Replay of a trace: the picker under a virtual clock, in front of simulated engines."""
