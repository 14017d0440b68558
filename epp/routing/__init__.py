# SPDX-License-Identifier: Apache-2.0
"""From a request to its destination: the datastore, the scheduler, the director and outlier detection."""
