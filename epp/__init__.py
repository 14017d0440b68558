# SPDX-License-Identifier: Apache-2.0
"""An endpoint picker for LLM inference gateways: which model server, on which accelerator, and why."""
