"""Which model each of Transformers' Auto classes makes of a Depthwise configuration."""

from functools import cache

from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from depthwise.models.backbone import DepthwiseModel
from depthwise.models.causal_lm import DepthwiseForCausalLM
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.masked_lm import DepthwiseForMaskedLM
from depthwise.models.question_answering import DepthwiseForQuestionAnswering
from depthwise.models.seq2seq import DepthwiseForSeq2SeqLM
from depthwise.models.sequence_classification import DepthwiseForSequenceClassification
from depthwise.models.token_classification import DepthwiseForTokenClassification

MODELS = {
    AutoModel: DepthwiseModel,
    AutoModelForSeq2SeqLM: DepthwiseForSeq2SeqLM,
    AutoModelForCausalLM: DepthwiseForCausalLM,
    AutoModelForMaskedLM: DepthwiseForMaskedLM,
    AutoModelForSequenceClassification: DepthwiseForSequenceClassification,
    AutoModelForTokenClassification: DepthwiseForTokenClassification,
    AutoModelForQuestionAnswering: DepthwiseForQuestionAnswering,
}


@cache
def register_models() -> None:
    """Tell the Auto classes; done once, when the first configuration is made."""
    for auto_class, model_class in MODELS.items():
        auto_class.register(DepthwiseConfig, model_class, exist_ok=True)
