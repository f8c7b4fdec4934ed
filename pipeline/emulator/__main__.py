"""`python -m pipeline.emulator`: the emulator as a process of its own, for tests and scripts."""

import argparse
import sys

from pipeline.emulator.options import WorldPlan, assignments, quirks_of
from pipeline.emulator.server import DEFAULT_TOKEN
from pipeline.emulator.serving import Serving, faults_of, serve


def main() -> None:
    """Read the arguments and serve; a wrong one ends with exit code 2 and a sentence."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.emulator", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--files", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--days", type=int, default=1095)
    parser.add_argument("--spread", default="natural", choices=["natural", "even", "burst", "same-second"])
    parser.add_argument("--now", default="", help="stop the clock at this moment")
    parser.add_argument("--profile", default="seen")
    parser.add_argument("--quirk", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--churn", type=float, default=0.0, help="changes a second")
    parser.add_argument("--prerender", action="store_true", help="render all files before serving (benchmarks)")
    parser.add_argument("--token", default=DEFAULT_TOKEN)
    parser.add_argument("--max-seconds", type=float, default=0.0)
    parser.add_argument("--until-stdin-closes", action="store_true")
    args = parser.parse_args()
    try:
        serving = Serving(
            plan=WorldPlan(files=args.files, seed=args.seed, days=args.days, spread=args.spread, now=args.now),
            quirks=quirks_of(args.profile, assignments(args.quirk)),
            faults=faults_of(args.fault),
            port=args.port,
            token=args.token,
            churn=args.churn,
            prerender=args.prerender,
            max_seconds=args.max_seconds,
            until_stdin_closes=args.until_stdin_closes,
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        serve(serving)
    except OSError as error:
        sys.exit(f"cannot listen on port {args.port}: {error}")


if __name__ == "__main__":
    main()
