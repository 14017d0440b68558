# SPDX-License-Identifier: Apache-2.0
"""Hardware of endpoints for plugins: tags, arrays of their values, and bounds and preferences of requests."""
