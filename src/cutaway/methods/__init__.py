"""What a model does besides writing: score, fill, embed, revise, save a prefix.

Functions over ``SyncLLM``, or over ``BaseLLM`` where they only make requests for the engine.
"""
