"""What happens between updates."""

import signal
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

if TYPE_CHECKING:
    from depthwise.training.trainer import DepthwiseTrainer


class Steering(TrainerCallback):
    """What happens after an update: a line of the log, a validation with a checkpoint, a stop."""

    def __init__(self, trainer: "DepthwiseTrainer") -> None:
        self.trainer = trainer

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.latent.hold(state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        trainer, training = self.trainer, self.trainer.task.recipe.training
        before = trainer.stream.place(trainer.num_steps - args.gradient_accumulation_steps)
        place = trainer.stream.place(trainer.num_steps)
        state.epoch = place.passes
        is_last = state.global_step >= state.max_steps
        if trainer.logs_at(state.global_step):
            trainer.write_line()
        if training.validate_every is None:
            is_due = place.epoch > before.epoch
        else:
            is_due = state.global_step % training.validate_every == 0
        control.should_evaluate = is_due or is_last
        asked = not is_last and trainer.team.any_of_us(bool(trainer.interrupt))
        saves = training.save_every is not None and state.global_step % training.save_every == 0
        control.should_save = control.should_evaluate or saves or asked
        if asked:
            trainer.stopped_by = trainer.interrupt.number or signal.SIGTERM
            control.should_training_stop = True
        return control
