# SPDX-License-Identifier: Apache-2.0
"""State that the pickers of one pool share: batches of changes, and the Redis or Valkey that carries them."""
