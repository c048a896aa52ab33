"""The web page: `dist` has the files that `make ui` built from ui/src; the daemon serves them."""
