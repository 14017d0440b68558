# SPDX-License-Identifier: Apache-2.0
"""The parsers of bodies, by API."""

import json

from epp.framework import Headers
from epp.plugins.parsers.grpc import SGLangHTTPParser, VLLMHTTPParser
from epp.plugins.parsers.openai import AnthropicParser, OpenAIParser

PARSERS = (OpenAIParser(), AnthropicParser(), VLLMHTTPParser(), SGLangHTTPParser())
APIS = {suffix: parser for parser in PARSERS for suffix in parser.suffixes}


def parse(suffix, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return APIS[suffix].parse(suffix, Headers(), raw)
