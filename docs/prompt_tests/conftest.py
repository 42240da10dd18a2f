"""The fixtures ask and llm."""

pytest_plugins = ["cutaway.cli.integrations.prompt_tests"]
