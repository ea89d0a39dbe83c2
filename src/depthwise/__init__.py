"""Depthwise: sequence models that spend only the depth each input needs.

    import depthwise
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained("runs/iwslt")

Importing the package registers its models with Transformers' Auto classes, without loading torch until they are used.
"""

from importlib import import_module
from typing import Any

from depthwise.registration import register_with_transformers

__version__ = "0.1.0"

_WHERE = {
    "DepthwiseConfig": "depthwise.models.configuration",
    "DepthwiseForCausalLM": "depthwise.models.causal_lm",
    "DepthwiseForMaskedLM": "depthwise.models.masked_lm",
    "DepthwiseForQuestionAnswering": "depthwise.models.question_answering",
    "DepthwiseForSeq2SeqLM": "depthwise.models.seq2seq",
    "DepthwiseForSequenceClassification": "depthwise.models.sequence_classification",
    "DepthwiseForTokenClassification": "depthwise.models.token_classification",
    "DepthwiseModel": "depthwise.models.backbone",
    "DepthwiseOutput": "depthwise.models.outputs",
    "Engine": "depthwise.engine.engine",
    "Plan": "depthwise.depth.plan",
    "generated_depths": "depthwise.models.generation",
    "greedy_decode": "depthwise.models.greedy",
    "run_masked": "depthwise.models.masked",
}

__all__ = ["__version__", *_WHERE]


def __getattr__(name: str) -> Any:
    """Public names are imported where they are first used."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'depthwise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_WHERE])


register_with_transformers()
