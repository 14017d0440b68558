# SPDX-License-Identifier: Apache-2.0
"""Token ids from a tokenizer file with a chat template: of whole prompts, and of conversations that grow."""

import builtins
import json
import threading

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import PROMPT_TOKENS, ConfigurationError, PromptTokens, Stability
from epp.pool.tokens.local_tokenizer import Prefixes, encode
from tests.support.waiting import until
from tests.unit.tokens.conftest import asked, build, chat

TEMPLATE = """\
{{ bos_token }}
{%- if tools %}{{ tools | tojson }}{% endif %}
{%- for message in messages %}
    {%- if message.role == "nobody" %}{{ raise_exception("no such role") }}{% endif %}
    {%- if not message.content and not message.tool_calls %}{% continue %}{% endif %}
<|im_start|>{{ message.role }}
{% generation %}{{ message.content }}{% endgeneration %}
    {%- for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
# The expected texts were rendered by transformers.
HELLO = "<s><|im_start|>user\nhello<|im_end|>\n"
OPEN = "<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def tokenizer():
    """Every byte is a token, "hello" and " hello" too; a prompt begins with <s>, and has specials of several kinds."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "<|im_start|>", "<|im_end|>", "<|im_end|>!"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    trained.train_from_iterator(["hello hello hello hello"], trainer)
    stripping = tokenizers.AddedToken("<mask>", lstrip=True, rstrip=True, special=True, normalized=False)
    trained.add_special_tokens([stripping])
    trained.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    trained.enable_truncation(max_length=4)
    trained.enable_padding(length=4)
    return trained


@pytest.fixture
def path(tokenizer, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    (tmp_path / "chat_template.jinja").write_text(TEMPLATE)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def local(path, **more):
    return {"tokenizer": {"path": str(path), **more}, "budget": "60s"}


@pytest.fixture
async def world(path):
    async with asked(local(path)) as world:
        yield world


def plain(tokenizer, text, *, special=False):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer.encode(text, add_special_tokens=special).ids


async def test_completion_has_the_special_tokens_that_the_tokenizer_adds(tokenizer, world):
    tokens, held = await world.tokens({"prompt": "hello hello!"}, "completions")
    assert (tokens.ids.tolist(), tokens.exact, held) == (plain(tokenizer, "hello hello!", special=True), True, True)
    tokens, _ = await world.tokens({"prompt": ["hello", "you"]}, "completions")
    assert (len(tokens.ids), tokens.ends[0]) == (tokens.ends[1], len(plain(tokenizer, "hello", special=True)))
    unadorned = await world.ids({"prompt": "hello", "add_special_tokens": False}, "completions")
    assert unadorned == plain(tokenizer, "hello")


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "K\u00f6ln"}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"a": "\u00e9<"}, "unknown": 1}}


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (chat("hello"), HELLO + OPEN),
        (chat("hello", add_generation_prompt=False), HELLO),
        (chat("hello", "", "you"), HELLO + "<|im_start|>user\nyou<|im_end|>\n" + OPEN),
        (
            chat("hello", "so ", continue_final_message=True, add_generation_prompt=False),
            HELLO + "<|im_start|>assistant\nso ",
        ),
        (
            chat("hello", tools=[TOOL], add_generation_prompt=False),
            '<s>[{"type": "function", "function": {"name": "f", "description": null, '
            '"parameters": {"a": "\u00e9<"}}}]' + HELLO[3:],
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]},
            "<s><|im_start|>user\na\nb<|im_end|>\n" + OPEN,
        ),
        (
            {"messages": [{"role": role, "content": role} for role in ("system", "user", "developer")]},
            "<s><|im_start|>system\nsystem\n\ndeveloper<|im_end|>\n<|im_start|>user\nuser<|im_end|>\n" + OPEN,
        ),
        (
            {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}]},
            "<s><|im_start|>assistant\nK\u00f6ln<|im_end|>\n" + OPEN,
        ),
    ],
)
async def test_chat_is_what_its_template_says(tokenizer, world, body, text):
    assert await world.ids(body) == plain(tokenizer, text)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a"] * 5000},
        {"messages": [{"role": "nobody", "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}]},
        chat("hello", chat_template="{{ 1 }}"),
        chat("hello", truncate_prompt_tokens=3),
        chat(*["hello"] * 5000),
        chat("hello", tools=[{"type": "function", "function": {}}]),
    ],
)
async def test_other_chats_and_too_many_prompts_are_estimated(world, body):
    assert await world.ids(body, "completions" if "prompt" in body else "chat/completions") is None
    assert world.results == {"refused": 1}


async def test_template_with_parts_gets_parts(tokenizer, path):
    template = "{% for m in messages %}{% for part in m.content %}{{ part.text }};{% endfor %}{% endfor %}"
    (path.parent / "chat_template.jinja").write_text(template)
    async with asked(local(path)) as world:
        assert await world.ids(chat("hello", "you")) == plain(tokenizer, "hello;you;")


async def test_template_may_be_named_or_be_in_the_configuration_of_the_tokenizer(tokenizer, path):
    named = path.parent / "mine.jinja"
    named.write_text("mine")
    async with asked(local(path, chatTemplatePath=str(named))) as world:
        assert await world.ids(chat("hello")) == plain(tokenizer, "mine")
    (path.parent / "chat_template.jinja").unlink()
    both = [{"name": "default", "template": "without"}, {"name": "tool_use", "template": "with"}]
    (path.parent / "tokenizer_config.json").write_text(json.dumps({"chat_template": both}))
    async with asked(local(path)) as world:
        assert await world.ids(chat("hello")) == plain(tokenizer, "without")
        assert await world.ids(chat("hello", tools=[TOOL])) == plain(tokenizer, "with")


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ messages }}{% endfor %}{% endfor %}",
        "{{ messages.__class__.__mro__ }}",
        "{% for a in range(10 ** 9) %}{% endfor %}",
    ],
)
async def test_template_that_writes_too_much_or_reaches_for_the_process_is_cut_off(path, template):
    (path.parent / "chat_template.jinja").write_text(template)
    async with asked(local(path)) as world:
        assert await world.ids(chat("hello " * 100)) in (None, [])


async def test_chats_without_a_template_are_estimated_with_a_warning(path):
    (path.parent / "chat_template.jinja").unlink()
    async with asked(local(path)) as world:
        assert await world.ids(chat("hello")) is None
        assert "has no chat template" in world.producer.warnings[0]


async def test_tokenizer_runs_beside_the_event_loop(path):
    async with asked(local(path)) as world:
        await world.ids(chat("hello"))
        assert any(thread.name.startswith("tokenizer") for thread in threading.enumerate())
    await until(lambda: not any(t.name.startswith("tokenizer") for t in threading.enumerate()), "the thread has ended")


async def test_next_turn_tokenizes_only_what_is_new(tokenizer, world):
    first = "hello " * 1000
    await world.ids(chat(first))
    prefixes = world.source.prefixes
    before = prefixes.tokenized
    found = await world.ids(chat(first, "yes", "more"))
    assert prefixes.tokenized - before < 100
    text = f"<s><|im_start|>user\n{first}<|im_end|>\n{OPEN}yes<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n{OPEN}"
    assert found == plain(tokenizer, text)


PIECES = st.sampled_from(
    ["<s>", "<|im_start|>", "<|im_end|>", "<|im_end|>!", "<mask>", "<|im_", "hello", " hello", " ", "!", "\u00e9", "x"]
)


@given(
    texts=st.lists(st.lists(PIECES, max_size=8), min_size=2, max_size=8), most_bytes=st.sampled_from([0, 3000, 10**6])
)
def test_ids_are_those_of_the_whole_text_whatever_was_tokenized_before(tokenizer, texts, most_bytes):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    prefixes = Prefixes(tokenizer, most_bytes)
    text = ""
    for pieces in texts:
        for each in ("".join(pieces), text + "".join(pieces)):
            assert prefixes.encode(each).tolist() == encode(tokenizer, each, add_special_tokens=False).tolist()
        text += "".join(pieces)


def test_tokenizer_that_puts_a_space_before_the_first_text_only_gives_the_same_ids():
    text = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="?"))  # noqa: S106  no password
    text.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["?", "<a>"], show_progress=False)
    text.train_from_iterator(["one two three", "two one", "three"], trainer)
    prefixes = Prefixes(text)
    for each in ("one<a>two", "one<a>two<a>three", "<a>one<a>two", "one<a>three two"):
        assert prefixes.encode(each).tolist() == text.encode(each).ids


def test_old_name_is_deprecated_and_stands_for_the_default_producer():
    producer = build(type_name="tokenizer", name="tokenizer")
    assert producer.stability is Stability.DEPRECATED
    assert producer.writes == (PROMPT_TOKENS,)


@pytest.mark.parametrize("content", [None, "{}"])
def test_file_that_is_no_tokenizer_is_named(tmp_path, content):
    path = tmp_path / "broken.json"
    if content:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"tokenizer file '.*broken\.json' cannot be read"):
        build(local(path))


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("chat_template.jinja", "{% if %}", "the chat template cannot be compiled"),
        ("tokenizer_config.json", "[", "tokenizer_config.json cannot be read"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "a", "template": "b"}]}', "one must be named default"),
    ],
)
def test_broken_template_is_said(path, file, content, message):
    (path.parent / "chat_template.jinja").unlink()
    (path.parent / file).write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        build(local(path))


@pytest.mark.parametrize("package", ["tokenizers", "epp.pool.tokens.chat_template"])
def test_missing_package_is_named_with_its_extra(monkeypatch, path, package):
    def without(name, *rest):
        if name == package:
            raise ImportError(name)
        return real(name, *rest)

    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"pip install .*tokenizers"):
        build(local(path))


@pytest.mark.parametrize(
    "parameters", [{}, {"modelName": "m", "estimate": {}}, {"estimate": {"image": {}, "video": {}}}]
)
async def test_parsers_estimate_is_the_default(parameters):
    async with asked(parameters) as world:
        tokens, held = await world.tokens({"prompt": "hello you"}, "completions")
        assert (tokens, held) == (PromptTokens(3), False)


def test_named_instance_publishes_under_its_own_key():
    assert build(name="mine").writes == (PROMPT_TOKENS.produced_by("mine"),)
