"""The official SDKs, typed, synchronous and not, streamed and not, and what agents do with them, on a live server.

Stub workers say what a model would: the shapes are what is tried here. A real model under real grammars is in
`tests/e2e/test_structured_output.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic import beta_tool
from pydantic import BaseModel

from controlplane.config import home
from controlplane.inference.tokenization import ModelTokenizer, load_tokenizer
from tests.controlplane.inference.live import LiveGateway
from tests.controlplane.inference.stub_worker import Script
from workers.protocol import ErrorCode, Finish, Prefill, Role, unpack_tokens

pytestmark = [pytest.mark.integration, pytest.mark.django_db]

MESSAGES: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
CHAT_TOOL: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "of a city", "parameters": PARAMETERS, "strict": True},
}
RESPONSES_TOOL: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}
MESSAGES_TOOL: Any = {"name": "weather", "description": "of a city", "input_schema": PARAMETERS}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


class Weather(BaseModel):
    city: str


class Stage:
    """The live server, and what its workers say next."""

    def __init__(self, live: LiveGateway) -> None:
        self.live = live
        self.tokenizer: ModelTokenizer = load_tokenizer(home().models / "tiny-model")
        self.openai = live.openai()
        self.anthropic = anthropic.Anthropic(base_url=live.url, api_key=live.key, max_retries=0)

    @property
    def async_openai(self) -> openai.AsyncOpenAI:
        """A new one for each test: its connections belong to one event loop."""
        return openai.AsyncOpenAI(base_url=f"{self.live.url}/v1", api_key=self.live.key, max_retries=0)

    @property
    def async_anthropic(self) -> anthropic.AsyncAnthropic:
        """At the other base URL of the same routes."""
        return anthropic.AsyncAnthropic(base_url=f"{self.live.url}/anthropic", api_key=self.live.key, max_retries=0)

    def say(self, *texts: str, finish: Finish = Finish.STOP, hits: int = 4) -> None:
        ending = [2] if finish is Finish.STOP else []
        self.live.stubs.script(
            *(
                Script(tokens=[*self.tokenizer.encode_foreign(text), *ending], finish=finish, hit_tokens=hits)
                for text in texts
            )
        )

    def asked(self) -> Prefill:
        """The last request that reached the workers."""
        frames = self.live.stubs.worker(Role.PREFILL).received
        return next(frame for frame in reversed(frames) if isinstance(frame, Prefill))

    def prompt(self) -> str:
        tokens = unpack_tokens(self.asked().tokens)
        return b"".join(self.tokenizer.spellings[token] for token in tokens).decode()


@pytest.fixture(scope="module")
def stage(live: LiveGateway) -> Stage:
    return Stage(live)


# --- chat completions --------------------------------------------------------------------------------------------


def test_chat_calls_tools(stage: Stage) -> None:
    stage.say("Let me see. " + CALL + "\n" + CALL)
    reply = stage.openai.chat.completions.parse(model="tiny", messages=MESSAGES, tools=[CHAT_TOOL])
    message = reply.choices[0].message
    assert (message.content, reply.choices[0].finish_reason) == ("Let me see. ", "tool_calls")
    assert message.tool_calls is not None
    assert [call.function.parsed_arguments for call in message.tool_calls] == [{"city": "Paris"}] * 2
    assert len({call.id for call in message.tool_calls}) == 2
    assert '"name": "weather"' in stage.prompt()
    assert stage.asked().sampling.grammar


def test_chat_streams_tools_with_stable_index_and_id(stage: Stage) -> None:
    stage.say(CALL)
    with stage.openai.chat.completions.stream(
        model="tiny",
        messages=MESSAGES,
        tools=[CHAT_TOOL],
        tool_choice="required",
        stream_options={"include_usage": True},
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    assert final.choices[0].finish_reason == "tool_calls"
    (call,) = final.choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments) == {"city": "Paris"}
    assert final.usage is not None


async def test_chat_parses_an_answer_by_schema(stage: Stage) -> None:
    stage.say('{"city": "Paris"}')
    reply = await stage.async_openai.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Weather)
    assert reply.choices[0].message.parsed == Weather(city="Paris")
    assert '"city"' in stage.asked().sampling.grammar


def test_a_conversation_with_tool_results_reaches_the_model(stage: Stage) -> None:
    stage.say("It is sunny.")
    history = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]  # fmt: skip
    stage.openai.chat.completions.create(model="tiny", messages=history, tools=[CHAT_TOOL])
    assert CALL + "<|im_end|>" in stage.prompt()
    assert "<tool_response>\nsunny\n</tool_response><|im_end|>" in stage.prompt()


def test_arguments_cut_off_by_the_limit_end_with_length(stage: Stage) -> None:
    stage.say('<tool_call>\n{"name": "weather", "arguments": {"city": "Par', finish=Finish.LENGTH)
    choice = stage.openai.chat.completions.create(model="tiny", messages=MESSAGES, tools=[CHAT_TOOL]).choices[0]
    assert choice.finish_reason == "length"
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].function.arguments == '{"city": "Par'


def test_sampling_parameters_reach_the_workers(stage: Stage) -> None:
    stage.say("Hi")
    stage.openai.chat.completions.create(
        model="tiny", messages=MESSAGES, logit_bias={"7": -3}, presence_penalty=0.5, frequency_penalty=-0.5,
        extra_body={"top_k": 9, "min_p": 0.1},
    )  # fmt: skip
    sampling = stage.asked().sampling
    assert sampling.logit_bias == {7: -3.0}
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.top_k, sampling.min_p) == (
        0.5,
        -0.5,
        9,
        0.1,
    )


def test_a_schema_that_cannot_be_enforced_is_400_with_its_path(stage: Stage) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"not": {}}}}}
    with pytest.raises(openai.BadRequestError) as caught:
        stage.openai.chat.completions.create(
            model="tiny",
            messages=MESSAGES,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        )
    assert caught.value.param == "response_format.json_schema.schema.properties.a.items"
    with pytest.raises(openai.BadRequestError, match="outside the vocabulary"):
        stage.openai.chat.completions.create(model="tiny", messages=MESSAGES, logit_bias={"999999": 1})


# --- legacy completions ------------------------------------------------------------------------------------------


def test_completions_answer_every_prompt_n_times(stage: Stage) -> None:
    stage.say("one", hits=2)
    reply = stage.openai.completions.create(
        model="tiny", prompt=["Hello world", "The kitchen"], n=2, logprobs=1, max_tokens=9
    )
    assert [choice.text for choice in reply.choices] == ["one"] * 4
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    logprobs = reply.choices[3].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens).startswith("one")
    assert reply.usage is not None
    assert reply.usage.prompt_tokens == len(stage.tokenizer.encode_foreign("Hello world")) + len(
        stage.tokenizer.encode_foreign("The kitchen")
    )
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == 4


def test_completions_stream_and_echo(stage: Stage) -> None:
    stage.say(" opens")
    stream = stage.openai.completions.create(
        model="tiny", prompt="The kitchen", echo=True, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices) == "The kitchen opens"
    assert chunks[-1].usage is not None
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_completions_take_token_ids_of_the_vocabulary_only(stage: Stage) -> None:
    stage.say("x")
    stage.openai.completions.create(model="tiny", prompt=[5, 6, 7])
    assert unpack_tokens(stage.asked().tokens) == [5, 6, 7]
    with pytest.raises(openai.BadRequestError, match="vocabulary"):
        stage.openai.completions.create(model="tiny", prompt=[5, 10**6])
    with pytest.raises(openai.BadRequestError, match="suffix"):
        stage.openai.completions.create(model="tiny", prompt="a", suffix="b")


# --- Messages ----------------------------------------------------------------------------------------------------


def test_messages(stage: Stage) -> None:
    stage.say("Hello 🎉", hits=3)
    message = stage.anthropic.messages.create(model="tiny", max_tokens=20, messages=MESSAGES, system="Be brief.")
    assert message.content[0].type == "text"
    assert message.content[0].text == "Hello 🎉"
    assert (message.role, message.stop_reason) == ("assistant", "end_turn")
    counted = stage.anthropic.messages.count_tokens(model="tiny", messages=MESSAGES, system="Be brief.")
    assert message.usage.cache_read_input_tokens == 3
    assert message.usage.input_tokens + 3 == counted.input_tokens
    assert message._request_id is not None


async def test_messages_stream_with_true_numbers_from_the_start(stage: Stage) -> None:
    stage.say("Let me see. " + CALL, hits=5)
    async with stage.async_anthropic.messages.stream(
        model="tiny", max_tokens=200, messages=MESSAGES, tools=[MESSAGES_TOOL]
    ) as stream:
        events = [event async for event in stream]
        final = await stream.get_final_message()
    start = events[0]
    assert start.type == "message_start"
    assert start.message.usage.cache_read_input_tokens == 5
    assert start.message.usage.input_tokens > 0
    assert [block.type for block in final.content] == ["text", "tool_use"]
    assert final.content[1].type == "tool_use"
    assert final.content[1].input == {"city": "Paris"}
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens > 0


def test_messages_say_which_stop_sequence_and_continue_an_answer(stage: Stage) -> None:
    stage.say("one two END three")
    message = stage.anthropic.messages.create(
        model="tiny",
        max_tokens=50,
        stop_sequences=["END"],
        messages=[*MESSAGES, {"role": "assistant", "content": "So"}],
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "END")
    assert message.content[0].type == "text"
    assert message.content[0].text == "one two "
    assert stage.prompt().endswith("<|im_start|>assistant\nSo")


def test_errors_of_messages_have_their_own_envelope(stage: Stage) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        stage.anthropic.messages.create(model="gone", max_tokens=5, messages=MESSAGES)
    assert isinstance(missing.value.body, dict)
    assert missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.body["request_id"] == missing.value.response.headers["x-request-id"]
    image: Any = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    with pytest.raises(anthropic.BadRequestError, match="Images"):
        stage.anthropic.messages.create(model="tiny", max_tokens=5, messages=[{"role": "user", "content": [image]}])
    stage.live.stubs.script(Script(fail=ErrorCode.QUEUE_FULL))
    with pytest.raises(anthropic.APIStatusError) as busy:
        stage.anthropic.messages.create(model="tiny", max_tokens=5, messages=MESSAGES)
    assert (busy.value.status_code, busy.value.response.headers["retry-after"]) == (529, "1")
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=stage.live.url, api_key="gk-no", max_retries=0).messages.create(
            model="tiny", max_tokens=5, messages=MESSAGES
        )


def test_models_in_both_shapes(stage: Stage) -> None:
    page = stage.anthropic.models.list(limit=2)
    assert [model.id for model in page] == ["small", "tiny", "tiny-model"]  # the SDK turns the pages
    assert (page.data[0].type, page.has_more) == ("model", True)
    assert stage.anthropic.models.retrieve("small").display_name == "Tiny"
    assert stage.openai.models.retrieve("small").object == "model"


# --- Responses ---------------------------------------------------------------------------------------------------


def test_responses(stage: Stage) -> None:
    stage.say("Hello 🎉")
    response = stage.openai.responses.create(model="tiny", input="Hi", instructions="Be brief.", store=True)
    assert (response.output_text, response.status) == ("Hello 🎉", "completed")
    assert response.usage is not None
    assert response.usage.input_tokens_details.cached_tokens == 4
    assert response.usage.output_tokens_details.reasoning_tokens == 0
    assert "Be brief." in stage.prompt()
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        stage.openai.responses.create(model="tiny", input="Hi", previous_response_id=response.id)


async def test_responses_stream(stage: Stage) -> None:
    stage.say("Hello you")
    async with stage.async_openai.responses.stream(model="tiny", input="Hi") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == "Hello you"
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == sorted({event.sequence_number for event in events})


def test_responses_call_tools_and_parse(stage: Stage) -> None:
    stage.say(CALL)
    with stage.openai.responses.stream(
        model="tiny", input=MESSAGES, tools=[RESPONSES_TOOL], tool_choice="required"
    ) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_response().output
    assert {"response.function_call_arguments.delta", "response.function_call_arguments.done"} <= kinds
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Paris"})
    stage.say('{"city": "Paris"}')
    parsed = stage.openai.responses.parse(
        model="tiny",
        text_format=Weather,
        input=[
            *MESSAGES,
            {"type": "function_call", "call_id": call.call_id, "name": "weather", "arguments": call.arguments},
            {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"},
        ],
    )
    assert parsed.output_parsed == Weather(city="Paris")


def test_a_response_that_was_cut_off_is_incomplete(stage: Stage) -> None:
    stage.say("Hello you", finish=Finish.LENGTH)
    response = stage.openai.responses.create(model="tiny", input="Hi")
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


@pytest.mark.parametrize("protocol", ["messages", "responses"])
def test_an_error_in_mid_stream_is_an_event(stage: Stage, protocol: str) -> None:
    tokens = stage.tokenizer.encode_foreign("a long story of the kitchen")
    stage.live.stubs.script(Script(tokens=tokens, delay_s=0.02, hang_before=2))
    with stage.openai.with_options(timeout=30).chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True
    ) as other:
        next(iter(other))  # a stream that nobody reads on with holds up nobody
    failing = Script(tokens=tokens, delay_s=0.02, fail=ErrorCode.INTERNAL, fail_message="secret details")
    stage.live.stubs.script(failing)
    if protocol == "messages":
        with pytest.raises(anthropic.InternalServerError) as caught:
            stage.anthropic.messages.create(model="tiny", max_tokens=5, messages=MESSAGES)
        assert "secret" not in str(caught.value)
    else:
        with pytest.raises(openai.InternalServerError) as failed:
            stage.openai.responses.create(model="tiny", input="Hi")
        assert "secret" not in str(failed.value)


# --- agents ------------------------------------------------------------------------------------------------------


def test_a_coding_agent_reads_and_writes_files(stage: Stage, tmp_path: Path) -> None:
    """Anthropic's own tool loop, as coding agents drive it: tools run here, results go back, until it is done."""
    (tmp_path / "main.py").write_text("print('hello')\n")

    @beta_tool
    def read_file(path: str) -> str:
        """Read a file.

        Args:
            path: Where it lies.
        """
        return (tmp_path / path).read_text()

    @beta_tool
    def write_file(path: str, content: str) -> str:
        """Write a file.

        Args:
            path: Where it lies.
            content: The whole content.
        """
        (tmp_path / path).write_text(content)
        return "written"

    stage.say(
        'I look first. <tool_call>\n{"name": "read_file", "arguments": {"path": "main.py"}}\n</tool_call>',
        '<tool_call>\n{"name": "write_file", "arguments": {"path": "main.py", "content": "print(1)\\n"}}\n</tool_call>',
        "Done.",
    )
    runner = stage.anthropic.beta.messages.tool_runner(
        model="tiny",
        max_tokens=200,
        tools=[read_file, write_file],
        messages=[{"role": "user", "content": "Make main.py print 1."}],
    )
    final = runner.until_done()
    assert final.content[0].type == "text"
    assert final.content[0].text == "Done."
    assert (tmp_path / "main.py").read_text() == "print(1)\n"
    assert "print('hello')" in stage.prompt()


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
async def test_an_agent_framework_gets_its_typed_answer(stage: Stage, protocol: str) -> None:
    """Pydantic AI: one tool of ours, and the answer itself as a call of a tool that it adds."""
    from pydantic_ai import Agent
    from pydantic_ai.models import Model
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(openai_client=stage.async_openai)
    models: dict[str, Model] = {
        "chat": OpenAIChatModel("tiny", provider=provider),
        "responses": OpenAIResponsesModel("tiny", provider=provider),
        "messages": AnthropicModel("tiny", provider=AnthropicProvider(anthropic_client=stage.async_anthropic)),
    }
    agent = Agent(models[protocol], output_type=Weather, system_prompt="Be brief.")
    asked: list[str] = []

    @agent.tool_plain
    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "sunny"

    stage.say(CALL, '<tool_call>\n{"name": "final_result", "arguments": {"city": "Paris"}}\n</tool_call>')
    result = await agent.run("Where is it sunny?")
    assert result.output == Weather(city="Paris")
    assert asked == ["Paris"]
    assert "sunny" in stage.prompt()
