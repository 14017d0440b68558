# SPDX-License-Identifier: Apache-2.0
"""Predictions for genuine vLLM servers, compared with measurements."""
