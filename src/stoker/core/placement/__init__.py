"""Whether and where a request fits: feasibility, scoring, and the search for nodes."""
