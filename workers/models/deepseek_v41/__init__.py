"""DeepSeek-V4.1-Flash: the text model, its cache formats, its drafter and its checkpoints.

One module per mechanism, its formula in the docstring. Section numbers are those of the V4.1 specification.
"""
