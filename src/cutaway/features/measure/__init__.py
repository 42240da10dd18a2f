"""What can be measured of a machine and a model: speed beside the limit, and the bits contract."""
