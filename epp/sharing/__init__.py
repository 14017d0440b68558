# SPDX-License-Identifier: Apache-2.0
"""What processes share: the pool, connections, metrics and health of one picker's workers, and the state of pickers."""
