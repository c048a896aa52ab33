"""`python -m stoker` is the same as `stoker`."""

from stoker.main import main

if __name__ == "__main__":
    raise SystemExit(main())
