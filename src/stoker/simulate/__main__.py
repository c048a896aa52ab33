"""`python -m stoker.simulate simulate …`: what `stoker simulate` and `stoker what-if` become."""

from stoker.simulate.command import main

if __name__ == "__main__":
    raise SystemExit(main())
