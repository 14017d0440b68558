# SPDX-License-Identifier: Apache-2.0
"""Flow control, which queues requests while endpoints have no room, and dispatches them when there is room."""
