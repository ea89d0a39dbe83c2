"""What all models share: configuration class, initialisation, losses by item."""

import math
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from depthwise.depth import LatentLayers, LayerScores, StructurePredictor
from depthwise.errors import ConfigError, InputError, Problem
from depthwise.mixers import CNN, Distances, KernelPredictor, LightConv, ScaledLinear
from depthwise.mixers.projected import ProjectedConv
from depthwise.models.block import Block
from depthwise.models.configuration import DepthwiseConfig
from depthwise.models.dense import DenseConnections
from depthwise.models.language_head import LanguageHead


class DepthwisePreTrainedModel(PreTrainedModel):
    """Loading, saving and initialisation. Heads give their losses as sums over ``num_items_in_batch``."""

    config_class = DepthwiseConfig
    config: DepthwiseConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _supports_sdpa = True
    _no_split_modules = ["Block"]
    needs: ClassVar[tuple[str, ...]] = ()
    """Which stacks (``encoder``, ``decoder``) this model is made of; a configuration without them is refused."""

    def __init__(self, config: DepthwiseConfig) -> None:
        sides = {side for side in ("encoder", "decoder") if getattr(config, side) is not None}
        if self.needs and sides != set(self.needs):
            wanted, found = " and ".join(self.needs), " and ".join(sorted(sides))
            name = type(self).__name__
            raise ConfigError(
                name,
                [
                    Problem(side, f"{name} is made of {wanted}; the configuration has {found}")
                    for side in sorted(sides ^ set(self.needs))
                ],
            )
        super().__init__(config)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """As in Transformers, where there is one vocabulary and one table for it."""
        separate = self.config.is_encoder_decoder and self.config.tied_embeddings != "all"
        if separate or self.config.adaptive is not None:
            kind = "bands of its own" if self.config.adaptive is not None else "a table for each side"
            raise ConfigError(
                "resize_token_embeddings",
                [Problem("vocab_size", f"this model has {kind}; build it anew with the vocabulary that you need")],
            )
        return super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)

    def gradient_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """As in Transformers; the reentrant kind cannot follow the source through keyword arguments and is refused."""
        if any(isinstance(value, dict) and value.get("use_reentrant") for value in (*args, *kwargs.values())):
            raise ConfigError(
                "gradient_checkpointing_kwargs",
                [Problem("use_reentrant", "reentrant checkpointing loses the source; use False, the default")],
            )
        super().gradient_checkpointing_enable(*args, **kwargs)

    def latent_layers(self) -> dict[str, LatentLayers]:
        """The gates of each side whose layers are latent."""
        found = {module.side: module for module in self.modules() if isinstance(module, LatentLayers)}
        return {side: found[side] for side in ("encoder", "decoder") if side in found}

    def use_gates(self, mode: str, seed: int = 0) -> None:
        """From now on, outside training, weigh latent layers by ``soft``, ``hard`` or ``sampled`` gates."""
        if not (layers := self.latent_layers()):
            raise InputError("this model has no gates on its layers; train one with model.latent, or leave gates out")
        for of_side in layers.values():
            of_side.use(mode, seed)

    @property
    def structure(self) -> StructurePredictor | None:
        """What says how many layers of the encoder an input needs, where something does."""
        return next((module for module in self.modules() if isinstance(module, StructurePredictor)), None)

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise the parameters that a module holds itself, as the reference implementation does.

        Embeddings N(0, 1/D) with zero padding; linear maps Xavier-uniform with zero bias, those into the heads of an
        attention times 1/sqrt(2), the last one of a branch times ``out_gain``; kernels of light convolutions
        Xavier-uniform on (H, 1, K); predictors of dynamic kernels torch's default for linear maps. Vectors of distances
        are N(0, 1), about as large as the keys beside which queries meet them: small ones are long in growing.
        """
        if isinstance(module, KernelPredictor):
            bound = 1 / math.sqrt(module.in_features)
            init.uniform_(module.weight, -bound, bound)
        elif isinstance(module, LanguageHead):
            init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight, gain=module.gain if isinstance(module, ScaledLinear) else 1.0)
            if module.bias is not None:
                init.zeros_(module.bias)
            if isinstance(module, LayerScores) and not getattr(module.bias, "_is_hf_initialized", False):
                init.constant_(module.bias[-1], module.last_bias)
        elif isinstance(module, Distances):
            init.normal_(module.weight)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=module.embedding_dim**-0.5)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, CNN):
            init.xavier_uniform_(module.weight, gain=module.out_gain)
            if module.bias is not None:
                init.zeros_(module.bias)
        if isinstance(module, Block) and module.scale is not None:
            init.zeros_(module.scale)
        if isinstance(module, DenseConnections):
            for weights in module.weights:
                init.constant_(weights, 1 / len(weights))
        if isinstance(module, LatentLayers):
            init.constant_(module.logits, module.options.first_logit(module.side))
            init.constant_(module.temperature, float(module.options.temperature))
            init.zeros_(module.hardness)
        if isinstance(module, LightConv):
            init.uniform_(module.weight, -module.weight_bound, module.weight_bound)
        if isinstance(module, ProjectedConv) and module.conv_bias is not None:
            init.zeros_(module.conv_bias)
