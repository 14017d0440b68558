# SPDX-License-Identifier: Apache-2.0
"""Detection of failing endpoints, which requests avoid for some time."""
