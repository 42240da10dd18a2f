"""Other people's programs that run a model in their process: `llm`, EleutherAI's lm-eval, pytest.

Each module knows the classes and the words of one program. cutaway installs none of these programs,
so a module is imported only by its program, or by a user who names it.
"""
