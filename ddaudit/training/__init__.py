"""The reference training: a small transformer on data of known entropy, under every kind of parallelism.

Each file does one thing and can be read alone; ``parallel/`` holds one file per kind, behind the contract in
``parallel/contract.py``. Importing this package does not import torch.
"""
