# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)  # no test passes or fails on a time
settings.load_profile("untimed")
