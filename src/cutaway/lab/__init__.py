"""What needs a model and a run: rerun, looked into, practised by hand, measured."""
