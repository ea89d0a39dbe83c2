"""Models of fairseq: their checkpoints, arguments, weights and dictionaries as an ordinary run.

    convert_fairseq("folder/of/fairseq", "runs/imported")

does everything. Its steps can be taken one by one:

    args, state = read_checkpoint("checkpoint_best.pt")
    options = without_absent_norms(options_from_args(args, num_source_types, num_target_types), state)
    model = DepthwiseForSeq2SeqLM(DepthwiseConfig.from_options(options))
    model.load_state_dict(convert_state_dict(state, options))
"""

from depthwise.interop.fairseq_checkpoint import read_checkpoint
from depthwise.interop.fairseq_folder import convert_fairseq
from depthwise.interop.fairseq_latent import shared_copy
from depthwise.interop.fairseq_options import LANGUAGE_MODELS, LIGHTCONVS, TRANSFORMERS, options_from_args
from depthwise.interop.fairseq_weights import convert_state_dict, without_absent_norms
from depthwise.interop.run_folder import Conversion

__all__ = [
    "LANGUAGE_MODELS",
    "LIGHTCONVS",
    "TRANSFORMERS",
    "Conversion",
    "convert_fairseq",
    "convert_state_dict",
    "options_from_args",
    "read_checkpoint",
    "shared_copy",
    "without_absent_norms",
]
