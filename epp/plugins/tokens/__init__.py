# SPDX-License-Identifier: Apache-2.0
"""Token counts of prompts and of requests in flight."""
