# SPDX-License-Identifier: Apache-2.0
"""Background collection of data on endpoints into the datastore: polls of their pages, and tags."""
