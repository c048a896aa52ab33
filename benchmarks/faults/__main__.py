"""`python -m benchmarks.faults`: kill daemons, supervisors and clients, and audit the jobs."""

import argparse
import sys
import tempfile
from pathlib import Path

from benchmarks.faults import schedules
from benchmarks.faults.campaign import Campaign
from benchmarks.faults.scenarios import SCENARIOS


def main() -> int:
    """Run the campaign that was asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (10)")
    parser.add_argument("--seed", type=int, default=1, help="chooses jobs, faults and moments (1)")
    parser.add_argument("--kills", type=int, default=0, help="end after this many (no limit)")
    parser.add_argument("--faults", type=int, default=60, help="faults in one episode (60)")
    parser.add_argument("--homes", type=int, default=2, help="episodes side by side (2)")
    parser.add_argument(
        "--only", type=chosen, default=list(SCENARIOS), metavar="NAME,...",
        help="of " + ", ".join(SCENARIOS),
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
    parser.add_argument("--keep", action="store_true", help="keep every episode's directory")
    parser.add_argument(
        "--dir", type=Path, default=Path(tempfile.gettempdir()), help="where episodes take place"
    )
    parser.add_argument(
        "--schedules", type=int, metavar="N", help="instead, N schedules in virtual time"
    )
    options = parser.parse_args()
    if options.schedules:
        return schedules.run(options.schedules, options.seed, options.homes)
    print(f"seed {options.seed}, {options.minutes:g} minutes, {options.homes} homes", flush=True)
    return Campaign(options).run()


def chosen(text: str) -> list[str]:
    """Check names of scenarios."""
    names = text.split(",")
    for name in names:
        if name not in SCENARIOS:
            raise argparse.ArgumentTypeError(f"{name}: choose from {', '.join(SCENARIOS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
