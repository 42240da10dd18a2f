"""Other people's programs that take a model in process: `llm`, EleutherAI's lm-eval, and pytest.

Each module knows the classes and the words of one of them, and is imported by it alone, or by
whoever asks for it by name: none of them is installed with cutaway.
"""
