# SPDX-License-Identifier: Apache-2.0
"""Replay of a trace: pickers in virtual time, with simulated engines."""
