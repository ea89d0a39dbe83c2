"""Whatever is given as options of a model: a sound model comes out, or a list of problems."""

from dataclasses import fields
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from depthwise.config import (
    KERNEL_NORMALIZATIONS,
    MIXERS,
    AdaptiveConfig,
    ModelConfig,
    StackConfig,
    check_model,
    parse_model,
)
from depthwise.errors import ConfigError, Problem

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 40),
    st.floats(),
    st.sampled_from([*MIXERS, *KERNEL_NORMALIZATIONS, "pre", "post", "all", "decoder", "learned", "layer_input", "?"]),
    st.lists(st.integers(-1, 9), max_size=4).map(tuple),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def some_options(kind: type[Any], **sections: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    values = {option.name: sections.get(option.name, ANYTHING) for option in fields(kind)}
    return st.fixed_dictionaries({}, optional=values)


STACKS = some_options(StackConfig)
MODELS = some_options(
    ModelConfig,
    encoder=STACKS | ANYTHING,
    decoder=STACKS | ANYTHING,
    adaptive=some_options(AdaptiveConfig) | ANYTHING,
)


@settings(max_examples=300, deadline=None)
@given(MODELS)
def test_parsing_gives_a_sound_model_or_a_config_error(options: dict[str, Any]) -> None:
    try:
        config = parse_model(options)
    except ConfigError:
        return
    assert check_model(config) == []


@settings(max_examples=300, deadline=None)
@given(MODELS, st.data())
def test_check_model_never_raises(options: dict[str, Any], data: st.DataObject) -> None:
    stack = data.draw(STACKS.map(lambda chosen: StackConfig(**chosen)) | ANYTHING)
    config = ModelConfig(**{"vocab_size": 9, **options, "encoder": stack})
    assert all(isinstance(problem, Problem) for problem in check_model(config))
