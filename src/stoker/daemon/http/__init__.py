"""HTTP transport and authentication; knows no route."""
