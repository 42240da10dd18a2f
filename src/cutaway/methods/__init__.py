"""What a model does beside writing: score, fill, embed, revise, save a prefix.

Functions over ``SyncLLM``, or over ``BaseLLM`` where they only say what the engine is to compute.
"""
