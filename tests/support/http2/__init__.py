# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 peers and frames."""
