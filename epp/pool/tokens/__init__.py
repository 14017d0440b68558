# SPDX-License-Identifier: Apache-2.0
"""Tokens of prompts: estimated, or as ids from a vLLM server, a tokenizer service or a tokenizer file."""
