"""The endpoints that look into a step: ``/v1/inside``, ``/v1/ablate``, ``/v1/near``."""
