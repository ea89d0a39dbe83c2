"""How a model is trained: optimisers, schedules of the learning rate, means of checkpoints."""

from depthwise.training.averaging import average_weights, last_checkpoints, write_average
from depthwise.training.optimizers import (
    LAMB,
    OPTIMIZERS,
    NesterovSGD,
    adam,
    adamw,
    build_optimizer,
    parameter_groups,
)
from depthwise.training.schedules import (
    SCHEDULES,
    build_schedule,
    constant_schedule,
    cosine_schedule,
    inverse_sqrt_schedule,
    linear_schedule,
    polynomial_schedule,
)

__all__ = [
    "LAMB",
    "OPTIMIZERS",
    "SCHEDULES",
    "NesterovSGD",
    "adam",
    "adamw",
    "average_weights",
    "build_optimizer",
    "build_schedule",
    "constant_schedule",
    "cosine_schedule",
    "inverse_sqrt_schedule",
    "last_checkpoints",
    "linear_schedule",
    "parameter_groups",
    "polynomial_schedule",
    "write_average",
]
