# SPDX-License-Identifier: Apache-2.0
"""Facts on the hardware of an endpoint: one module for each source, and the merge of all of them into a tag."""
