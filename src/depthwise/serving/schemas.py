"""What requests and answers look like. Requests are read strictly: no other names, no numbers in quotes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_NAME = 200
MAX_SEED = 2**63 - 1


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class QualityBudget(Strict):
    """The cheapest measured setting that is worse than full depth by no more than this, in the run's own metric."""

    quality_drop: float = Field(ge=0, le=1e6)


class ComputeBudget(Strict):
    """The best measured setting that takes no more than this share of the operations of full depth."""

    compute: float = Field(gt=0, le=1)


Depth = Annotated[
    Annotated[int, Field(ge=1, le=10_000)]
    | Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    | QualityBudget
    | ComputeBudget,
    Field(
        description='How deep tokens run: "full", a number of blocks, the name of a calibrated setting, or a budget. '
        "Left out, it is the default of the model.",
        examples=["full", 2, {"quality_drop": 0.5}],
    ),
]
ModelName = Annotated[
    str | None, Field(max_length=MAX_NAME, description="A name of /v1/models; not needed where there is one that fits.")
]
Text = Annotated[str, Field(min_length=1)]


class Asking(Strict):
    """What all requests share."""

    model: ModelName = None
    depth: Depth | None = None


class GenerateRequest(Asking):
    """A text to translate, to summarise or to continue."""

    input: str
    to: Annotated[
        str | None,
        Field(
            max_length=MAX_NAME,
            description="What to write, for models of several languages: one of `languages` in `/v1/models`.",
        ),
    ] = None
    max_new_tokens: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    temperature: Annotated[
        float | None, Field(ge=0, le=10, description="Samples if above 0, of which the least is 0.01; 0 is greedy.")
    ] = None
    top_k: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    seed: Annotated[int | None, Field(ge=0, le=MAX_SEED)] = None
    num_beams: Annotated[int | None, Field(ge=1, le=1_000, description="Beams are neither sampled nor streamed.")] = (
        None
    )
    stream: bool = False


class ClassifyRequest(Asking):
    """A text, or a pair of texts, to classify or to estimate a number for."""

    input: Text
    pair: Text | None = None


class TagRequest(Asking):
    """A sentence whose words stand between blanks, or its words."""

    input: Text | Annotated[list[Text], Field(min_length=1)]


class AnswerRequest(Asking):
    """A question, and the text that its answer is looked for in."""

    question: Text
    context: Text


class Token(BaseModel):
    """``text`` may be empty: the end of a text, or a part of a character."""

    text: str
    id: int
    depth: int
    score: float | None = Field(description="Log-probability by the model; none for beams.")


class InputToken(BaseModel):
    text: str
    depth: int


class DepthReport(BaseModel):
    asked: Any = Field(description="As the request has it, or the default.")
    policy: str
    mean: float
    layers: int


class Cost(BaseModel):
    token_layers: int = Field(description="Blocks that these tokens ran, all together.")
    full_token_layers: int
    seconds: float
    queued_seconds: float


class GenerateAnswer(BaseModel):
    model: str
    output: str
    tokens: list[Token]
    depth: DepthReport
    cost: Cost
    finish_reason: Literal["stop", "length"]


class ClassifyAnswer(BaseModel):
    """``label`` and ``scores`` where there are classes, ``value`` where a number is estimated."""

    model: str
    label: str | None = None
    value: float | None = None
    scores: dict[str, float] | None = None
    tokens: list[InputToken]
    depth: DepthReport
    cost: Cost


class Word(BaseModel):
    """``depth`` is 0 where the tokenizer makes nothing of a word."""

    text: str
    tag: str
    depth: int


class TagAnswer(BaseModel):
    model: str
    words: list[Word]
    depth: DepthReport
    cost: Cost


class AnswerAnswer(BaseModel):
    """``answer`` is empty and has no place where the context does not tell it."""

    model: str
    answer: str
    start: int | None
    end: int | None
    score: float | None = Field(description="Of the best span.")
    null_score: float | None = Field(description="Of there being no answer.")
    depth: DepthReport
    cost: Cost


class NamedSetting(BaseModel):
    name: str
    policy: str
    goal: dict[str, Any] | None = None
    budget_met: bool | None = None
    quality: float | None = None
    full_quality: float | None = None
    metric: str | None = None
    mean_depth: float | None = None
    compute: float | None = None


class Depths(BaseModel):
    default: Any
    full: bool
    fixed: list[int]
    settings: list[NamedSetting]
    budgets: bool


class ModelLimits(BaseModel):
    input_tokens: int
    new_tokens: int | None
    body_bytes: int
    waiting: int
    seconds: float


class ModelDescription(BaseModel):
    name: str
    task: str
    kind: Literal["generate", "classify", "tag", "answer"]
    layers: int
    depths: Depths
    languages: list[str] | None = Field(
        description="What `to` may be: languages to write, or pairs such as de-en where the encoder asks for both."
    )
    labels: list[str] | None
    pair: bool = Field(description="Whether inputs are pairs of texts.")
    completions: bool = Field(description="Whether /v1/completions takes this model.")
    limits: ModelLimits
    examples: list[str]


class Models(BaseModel):
    models: list[ModelDescription]


class Status(BaseModel):
    status: str


class ErrorContent(BaseModel):
    type: str
    message: str
    remedy: str | None = None


class ErrorAnswer(BaseModel):
    error: ErrorContent
