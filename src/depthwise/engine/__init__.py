"""The compact executor: fewer blocks are less time."""

from depthwise.engine.choosing import ChosenEncoder
from depthwise.engine.decoding import Generated
from depthwise.engine.drafting import Drafting
from depthwise.engine.encoder import CompactEncoder
from depthwise.engine.engine import Engine
from depthwise.engine.lossless import Drafts
from depthwise.engine.request_queue import QueueOptions, RequestQueue
from depthwise.engine.requests import Answer, Said
from depthwise.engine.tickets import Ticket

__all__ = [
    "Answer",
    "ChosenEncoder",
    "CompactEncoder",
    "Drafting",
    "Drafts",
    "Engine",
    "Generated",
    "QueueOptions",
    "RequestQueue",
    "Said",
    "Ticket",
]
