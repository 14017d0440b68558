# SPDX-License-Identifier: Apache-2.0
"""KV events of engines: the messages, the keys and the index of cached blocks, the subscribers and the producer."""
