# SPDX-License-Identifier: Apache-2.0
"""Benchmarks, attacks, overload tests and fuzzing."""
