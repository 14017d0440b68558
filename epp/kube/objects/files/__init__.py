# SPDX-License-Identifier: Apache-2.0
"""Files of cluster objects, and the last good version of each object in them."""
