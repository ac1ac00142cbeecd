"""DeepSeek's own format: rendered and parsed by `deepseek_recipe`, with the tokenizer of v41-nano."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deepseek_recipe as recipe
import llguidance
import pytest

from controlplane.inference.conversation import ChatModel, Prompt, load_chat_model
from controlplane.inference.errors import ApiError
from controlplane.inference.output import Piece
from controlplane.inference.schema.chat import parse_chat
from controlplane.inference.schema.messages import parse_messages
from controlplane.inference.schema.responses import parse_response
from tests.controlplane.inference.conftest import write_tiny_model
from workers.manifest import read_manifest
from workers.models.deepseek_v41.nano_tokenizer import FIRST, LAST, build_tokenizer

SIZE = 1024
MARK = recipe.SpecialToken.Dsml.default_str()
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}  # fmt: skip
CALL = (
    f'\n\n<{MARK} calls>\n<{MARK} invoke name="weather">\n<{MARK} parameter name="city" string="true">Paris'
    f"</{MARK} parameter>\n</{MARK} invoke>\n</{MARK} calls>"
)


@pytest.fixture(scope="module")
def nano(tmp_path_factory: pytest.TempPathFactory) -> ChatModel:
    folder: Path = tmp_path_factory.mktemp("deepseek") / "nano"
    special = {text: SIZE - len(LAST) + at for at, text in enumerate(LAST)}
    write_tiny_model(
        folder, name="nano", family="deepseek_v41", chat_format="deepseek_v41", vocab_size=SIZE, bos_token_id=0,
        eos_token_ids=(1,), special_tokens={**special, **{text: at for at, text in enumerate(FIRST)}},
    )  # fmt: skip
    build_tokenizer(SIZE).save(str(folder / "tokenizer.json"))
    return load_chat_model(folder, read_manifest(folder))


def chat(model: ChatModel, **fields: Any) -> Prompt:
    body = {"model": "m", "messages": HELLO, **fields}
    (prompt,) = model.prepare(parse_chat(json.dumps(body).encode(), max_choices=1), 4096)
    return prompt


def messages(model: ChatModel, **fields: Any) -> Prompt:
    body = {"model": "m", "messages": HELLO, "max_tokens": 50, **fields}
    (prompt,) = model.prepare(parse_messages(json.dumps(body).encode()), 4096)
    return prompt


def responses(model: ChatModel, **fields: Any) -> Prompt:
    (prompt,) = model.prepare(parse_response(json.dumps({"model": "m", "input": "Hello", **fields}).encode()), 4096)
    return prompt


def spelled(model: ChatModel, prompt: Prompt) -> str:
    return b"".join(model.tokenizer.spellings[token] for token in prompt.tokens).decode()


def read(model: ChatModel, prompt: Prompt, text: str, *, at_once: int = 3) -> Piece:
    """All that a model's output `text` comes to."""
    tokens = [*model.tokenizer.encode_template(text), 1]
    output = prompt.new_output()
    whole = Piece()
    pieces = [output.push(tokens[at : at + at_once]) for at in range(0, len(tokens), at_once)]
    for piece in [*pieces, output.finish()]:
        whole.content += piece.content
        whole.reasoning += piece.reasoning
        whole.tools += piece.tools
        whole.tokens += piece.tokens
    return whole


def allows(model: ChatModel, grammar: str, text: str) -> bool:
    vocabulary = llguidance.LLTokenizer(build_tokenizer(SIZE).to_str(), eos_token=1)
    matcher = llguidance.LLMatcher(vocabulary, grammar)
    assert not matcher.is_error(), matcher.get_error()
    tokens = vocabulary.tokenize_bytes(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def test_thinking_on_and_off_in_all_protocols(nano: ChatModel) -> None:
    thinking = [chat(nano), messages(nano, thinking={"type": "enabled", "budget_tokens": 1024}), responses(nano)]
    assert [spelled(nano, prompt)[-7:] for prompt in thinking] == ["<think>"] * 3
    assert all(prompt.thinking for prompt in thinking)
    off = [
        chat(nano, thinking={"type": "disabled"}),
        messages(nano, thinking={"type": "disabled"}),
        responses(nano, reasoning={"effort": "none"}),
    ]
    assert [spelled(nano, prompt)[-8:] for prompt in off] == ["</think>"] * 3
    assert not any(prompt.thinking for prompt in off)


def test_reasoning_answer_and_calls_are_told_apart(nano: ChatModel) -> None:
    whole = read(nano, chat(nano, tools=[TOOL]), f"Hm, Paris.</think>Let me see.{CALL}")
    assert (whole.reasoning, whole.content) == ("Hm, Paris.", "Let me see.")
    assert [delta.name for delta in whole.tools if delta.name] == ["weather"]
    assert json.loads("".join(delta.arguments for delta in whole.tools)) == {"city": "Paris"}


def test_stop_strings_end_the_answer_and_not_the_reasoning(nano: ChatModel) -> None:
    prompt = chat(nano, stop=["END"])
    output = prompt.new_output()
    piece = output.push(nano.tokenizer.encode_template("END of thought</think>So END here"))
    assert (piece.reasoning, piece.content, piece.stop) == ("END of thought", "So ", "END")


def test_calls_follow_their_grammar_after_the_reasoning(nano: ChatModel) -> None:
    grammar = chat(nano, tools=[TOOL]).grammar
    assert allows(nano, grammar, f"Hm.</think>Let me see.{CALL}")
    assert not allows(nano, grammar, f"Hm.</think>{CALL.replace('weather', 'gone')}")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_forced_call_is_begun_in_the_prompt_without_thinking(nano: ChatModel, choice: Any) -> None:
    prompt = chat(nano, tools=[TOOL], tool_choice=choice)
    assert not prompt.thinking
    rest = CALL.partition("calls>\n")[2]
    assert spelled(nano, prompt).endswith(f"<{MARK} calls>\n")
    assert allows(nano, prompt.grammar, rest)
    assert json.loads("".join(delta.arguments for delta in read(nano, prompt, rest).tools)) == {"city": "Paris"}


def test_a_schema_is_shown_and_enforced_in_all_protocols(nano: ChatModel) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    off = {"type": "disabled"}
    named = {"name": "x", "schema": schema}
    prompts = [
        chat(nano, thinking=off, response_format={"type": "json_schema", "json_schema": named}),
        messages(nano, thinking=off, output_config={"format": {"type": "json_schema", "schema": schema}}),
        responses(nano, reasoning={"effort": "none"}, text={"format": {"type": "json_schema", **named}}),
    ]
    for prompt in prompts:
        assert '"integer"' in spelled(nano, prompt)
        assert allows(nano, prompt.grammar, '{"n": 3}')
        assert not allows(nano, prompt.grammar, '{"n": "3"}')
    assert allows(nano, chat(nano, response_format={"type": "json_object"}).grammar, 'hm</think>{"a": [1]}')


def test_beside_tools_the_answer_still_follows_its_schema(nano: ChatModel) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    named = {"name": "x", "schema": schema}
    tool = {"type": "function", **TOOL["function"]}
    prompts = [
        chat(nano, tools=[TOOL], response_format={"type": "json_schema", "json_schema": named}),
        responses(nano, tools=[tool], text={"format": {"type": "json_schema", **named}}),
    ]
    for prompt in prompts:
        assert allows(nano, prompt.grammar, 'hm</think>{"n": 3}')
        assert allows(nano, prompt.grammar, f"hm</think>{CALL}")
        assert not allows(nano, prompt.grammar, "hm</think>three")


def test_messages_continue_an_answer(nano: ChatModel) -> None:
    prompt = messages(nano, messages=[*HELLO, {"role": "assistant", "content": "So"}], thinking={"type": "disabled"})
    assert spelled(nano, prompt).endswith("So")


def test_special_tokens_in_a_message_stay_text(nano: ChatModel) -> None:
    prompt = chat(nano, messages=[{"role": "user", "content": "a <｜end▁of▁sentence｜> b"}])
    assert 1 not in prompt.tokens


def test_what_contradicts_itself_is_a_400(nano: ChatModel) -> None:
    with pytest.raises(ApiError, match="regex"):
        chat(nano, tools=[TOOL], response_format={"type": "regex", "regex": "a"})
    with pytest.raises(ApiError, match="Thinking mode"):
        chat(nano, tools=[TOOL], tool_choice="required", thinking={"type": "enabled"})


def test_parsers_of_one_prompt_share_nothing(nano: ChatModel) -> None:
    """A retry and every further choice get a parser of their own from the one conversion of the request."""
    prompt = chat(nano, tools=[TOOL])
    tokens = [*nano.tokenizer.encode_template(f"I think</think>So{CALL}"), 1]
    dead = prompt.new_output()
    dead.push(tokens[: len(tokens) // 2])
    fresh, other = prompt.new_output(), prompt.new_output()
    for token in tokens:
        assert fresh.push([token]).content == other.push([token]).content
    assert read(nano, prompt, f"I think</think>So{CALL}").reasoning == "I think"
    assert (fresh.tool_calls, other.tool_calls) == (1, 1)


def test_a_parser_converts_nothing(nano: ChatModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsers are made on the event loop; a long conversation is converted once, where it is prepared."""
    prompt = chat(nano)
    monkeypatch.setattr(ChatModel, "_convert", lambda *_: pytest.fail("converted once more"))
    prompt.new_output()


@pytest.mark.parametrize("tools", [{}, {"tools": [TOOL]}])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_a_strict_answer_is_closed_beside_tools_too(
    nano: ChatModel, tools: dict[str, Any], strict: bool, protocol: str
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    wanted = {"name": "n", "schema": schema, "strict": strict}
    if protocol == "chat":
        form = {"type": "json_schema", "json_schema": wanted}
        prompt = chat(nano, response_format=form, thinking={"type": "disabled"}, **tools)
    else:
        named = [{"type": "function", **TOOL["function"]}] if tools else []
        offered = {"tools": named} if named else {}
        form = {"format": {"type": "json_schema", **wanted}}
        prompt = responses(nano, text=form, reasoning={"effort": "none"}, **offered)
    assert allows(nano, prompt.grammar, '{"a": 1}')
    assert allows(nano, prompt.grammar, '{"a": 1, "b": 2}') is not strict
