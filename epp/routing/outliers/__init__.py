# SPDX-License-Identifier: Apache-2.0
"""Detection of failing endpoints, which requests then avoid for a while."""
