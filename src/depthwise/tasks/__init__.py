"""What is learned from which data: how text becomes batches, batches become a loss, and outputs become predictions."""

from depthwise.tasks.base import Task
from depthwise.tasks.build import TASKS, load_task, open_task
from depthwise.tasks.language_modeling import LanguageModeling
from depthwise.tasks.likelihood import LikelihoodTask
from depthwise.tasks.masked_language_modeling import MaskedLanguageModeling
from depthwise.tasks.multilingual import MultilingualTranslation
from depthwise.tasks.question_answering import QuestionAnswering
from depthwise.tasks.sequence_to_sequence import SequenceToSequence
from depthwise.tasks.summarization import Summarization
from depthwise.tasks.tagging import Tagging
from depthwise.tasks.text_classification import TextClassification
from depthwise.tasks.translation import Translation
from depthwise.tasks.values import Examples, Losses, Prediction

__all__ = [
    "TASKS",
    "Examples",
    "LanguageModeling",
    "LikelihoodTask",
    "Losses",
    "MaskedLanguageModeling",
    "MultilingualTranslation",
    "Prediction",
    "QuestionAnswering",
    "SequenceToSequence",
    "Summarization",
    "Tagging",
    "Task",
    "TextClassification",
    "Translation",
    "load_task",
    "open_task",
]
