"""`python -m stoker.simulate VERB OPTIONS [WORD ...]`: the simulator; OPTIONS are JSON."""

from stoker.simulate.command import main

if __name__ == "__main__":
    raise SystemExit(main())
