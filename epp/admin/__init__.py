# SPDX-License-Identifier: Apache-2.0
"""The admin port: HTTP with which operators read the state of the picker, and change quotas."""
