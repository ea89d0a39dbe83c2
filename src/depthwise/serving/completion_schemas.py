"""What completions look like for clients of OpenAI's API. What this server cannot do, it does not accept."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from depthwise.serving.schemas import MAX_NAME, MAX_SEED, Asking, Cost, DepthReport, Strict, Text

MOST_STOPS = 4


class StreamOptions(Strict):
    include_usage: bool = False


class CompletionRequest(Asking):
    """A prompt or several. Options of others that change nothing may be sent with the value that changes nothing."""

    prompt: str | Annotated[list[str], Field(min_length=1)]
    max_tokens: Annotated[int | None, Field(ge=1, le=1_000_000)] = 16
    temperature: Annotated[float | None, Field(ge=0, le=10, description="0 is greedy.")] = 1.0
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    n: Annotated[int | None, Field(ge=1, le=1_000)] = 1
    stop: Text | Annotated[list[Text], Field(max_length=MOST_STOPS)] | None = None
    seed: Annotated[int | None, Field(ge=0, le=MAX_SEED)] = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    user: Annotated[str | None, Field(max_length=MAX_NAME, description="Has no effect, and is not kept.")] = None
    best_of: Literal[1] | None = None
    echo: Literal[False] | None = None
    frequency_penalty: Literal[0] | None = None
    presence_penalty: Literal[0] | None = None
    logit_bias: None = None
    logprobs: None = None
    suffix: None = None


class ChoiceDepth(BaseModel):
    """How deep the tokens of one text ran."""

    depth: DepthReport
    cost: Cost
    depths: list[int]


class Choice(BaseModel):
    text: str
    index: int
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None
    depthwise: ChoiceDepth | None = None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
