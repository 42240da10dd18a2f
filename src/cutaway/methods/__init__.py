"""What can be asked of a model beside the next token: score, fill, embed, revise, save a prefix.

Functions over what runs requests. Refuses to know who steps the engine.
"""
