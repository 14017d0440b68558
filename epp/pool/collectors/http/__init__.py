# SPDX-License-Identifier: Apache-2.0
"""An HTTP/1.1 client for pages that are asked for again and again: one GET at a time on connections that are kept."""
