# SPDX-License-Identifier: Apache-2.0
"""Files that parameters of the tagger name, a GPU catalogue and a price list: each in its last good version."""
