"""Encoders of Transformers: BERT, RoBERTa and ALBERT, with or without a head, as an ordinary run.

    convert_hf("folder/of/bert", "runs/imported")

does everything. Its steps can be taken one by one:

    raw = read_config(folder)
    config = parse_config(raw)
    ids = {"pad_token_id": config.pad_token_id, "num_labels": config.num_labels}
    model = model_class(raw, bare=False)(DepthwiseConfig.from_options(options_from_config(config), **ids))
    file, weights = read_weights(folder)
    model.load_state_dict(convert_weights(weights, config, model).weights)
"""

from depthwise.interop.hf_files import read_config, read_tokenizer, read_weights
from depthwise.interop.hf_folder import convert_hf
from depthwise.interop.hf_options import FAMILIES, model_class, options_from_config, parse_config
from depthwise.interop.hf_weights import convert_weights
from depthwise.interop.run_folder import Conversion

__all__ = [
    "FAMILIES",
    "Conversion",
    "convert_hf",
    "convert_weights",
    "model_class",
    "options_from_config",
    "parse_config",
    "read_config",
    "read_tokenizer",
    "read_weights",
]
