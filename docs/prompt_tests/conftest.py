"""The fixtures ask and llm."""

pytest_plugins = ["cutaway.features.integrations.prompt_tests"]
