# SPDX-License-Identifier: Apache-2.0
"""Built-in scorers; each imports only `epp.framework`."""
