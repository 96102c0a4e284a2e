"""The pieces that models are made of: explicit weights, calls into `pagemill.kernels`."""
