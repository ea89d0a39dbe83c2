"""Models in the form that Transformers knows: configuration, blocks, stacks, heads.

Nothing is imported here, so that the configuration class can be registered without loading any model code; see
``depthwise.registration``. The public names are those of ``depthwise`` itself.
"""
