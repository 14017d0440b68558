# SPDX-License-Identifier: Apache-2.0
"""Hardware of endpoints as plugins see it: tags, arrays of their values, bounds and preferences for requests."""
