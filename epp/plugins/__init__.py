# SPDX-License-Identifier: Apache-2.0
"""Built-in plugins other than scorers; each imports only `epp.framework`."""
