# SPDX-License-Identifier: Apache-2.0
"""Benches, attacks, overload and fuzzing of the program."""
