"""Generic values and containers: amounts, sorted list, timer heap."""
