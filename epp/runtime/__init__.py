# SPDX-License-Identifier: Apache-2.0
"""Files, sockets, background tasks and memory of the process, and the declaration of flags."""
