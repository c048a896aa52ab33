"""Other libraries' ways to run things, with stoker's queue behind them."""
