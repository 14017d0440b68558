# SPDX-License-Identifier: Apache-2.0
"""Token counts: the tokens of a prompt, and those that it adds to an endpoint."""
