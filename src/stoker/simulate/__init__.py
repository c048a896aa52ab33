"""The same core and store under a virtual clock, with modelled processes and crashes."""
