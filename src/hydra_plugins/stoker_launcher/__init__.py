"""Hydra launcher for stoker: `python train.py -m hydra/launcher=stoker lr=0.1,0.01`."""
