# SPDX-License-Identifier: Apache-2.0
"""Parameters of the token producer."""

from epp.framework import Count, Name, Parameters
from epp.framework.quantities import parse_duration
from epp.kube.objects.dynamic_scoring import is_url
from epp.plugins.media_sizes import ImageEstimate, VideoEstimate

DEFAULT_URL = "http://localhost:8000"


class Estimate(Parameters, frozen=True):
    """Estimate of four bytes for each token, and of media by their size."""

    image: ImageEstimate | None = None
    """Tokens of images; by default one for each 1,024 pixels."""
    video: VideoEstimate | None = None
    """Tokens of videos; by default those of an image of 640 by 360 pixels for each second."""


class Vllm(Parameters, frozen=True):
    """A vLLM server that renders prompts; of vLLM 0.32, one started with `--enable-scale-out`."""

    url: Name = DEFAULT_URL
    """Base URL; bodies of requests are sent to `/v1/completions/render` and other render paths below it."""
    timeout: str = "5s"
    """Time for an answer. A request waits for the `budget` only; a later answer is of use to the next ones."""
    mm_timeout: str = "30s"
    """Time for the answer to a prompt with media."""

    def __post_init__(self) -> None:
        if not is_url(self.url):
            raise ValueError(f"url is {self.url!r:.80}: write http:// or https:// with host, port and path")
        for name, text in (("timeout", self.timeout), ("mmTimeout", self.mm_timeout)):
            _check_positive(name, text)


class TokenizerFile(Parameters, frozen=True):
    """A tokenizer in this process, and its chat template: as trusted as this configuration."""

    path: Name
    """Path of the model's `tokenizer.json`, in the format of Hugging Face; read with the configuration."""
    chat_template_path: str = ""
    """Path of the chat template in Jinja; by default `chat_template.jinja` beside the tokenizer, or else the
    `chat_template` in `tokenizer_config.json` there."""
    max_bytes: Count = 512 * 1024
    """Bytes of a request body that is tokenized; the tokens of a larger one are estimated."""


class TokenProducerParameters(Parameters, frozen=True):
    """Method: at most one of `estimate`, `tokenizer`, `vllm` and `udsTokenizerConfig`; `estimate` by default."""

    model_name: str = ""
    """Model that `vllm` is asked about. Without a method, `vllm` with its defaults is used."""
    estimate: Estimate | None = None
    """Count four bytes as one token."""
    tokenizer: TokenizerFile | None = None
    """Count with a tokenizer file; needs the extra `tokenizers`."""
    vllm: Vllm | None = None
    """Ask a vLLM server for token ids; needs `modelName`."""
    uds_tokenizer_config: dict[str, object] | None = None
    """A tokenizer behind a Unix socket. Refused: not supported yet."""
    budget: str = "50ms"
    """Time that a request may wait for token ids; after that it is routed with an estimate."""

    def __post_init__(self) -> None:
        if self.uds_tokenizer_config is not None:
            raise ValueError("udsTokenizerConfig is known, not supported yet; use vllm, tokenizer or estimate")
        given = [name for name in ("estimate", "tokenizer", "vllm") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"both {given[0]} and {given[1]} are set; leave one of them out")
        if self.vllm is not None and not self.model_name:
            raise ValueError("modelName is missing: name the model that the server at vllm.url serves")
        _check_positive("budget", self.budget)

    @property
    def service(self) -> Vllm | None:
        """The server to ask."""
        if self.model_name and self.estimate is None and self.tokenizer is None:
            return self.vllm or Vllm()
        return None


def _check_positive(name: str, text: str) -> None:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if seconds <= 0:
        raise ValueError(f"{name} is {text!r}: write a duration above 0")
