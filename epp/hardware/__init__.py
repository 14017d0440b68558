# SPDX-License-Identifier: Apache-2.0
"""Accelerators of endpoints: facts from labels, cluster objects and declarations, merged into one tag each."""
