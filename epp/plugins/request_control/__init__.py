# SPDX-License-Identifier: Apache-2.0
"""Request control: admission of requests, and reports on responses."""
