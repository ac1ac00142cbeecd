"""`python -m controlplane.launcher up|down`."""

from __future__ import annotations

import argparse
import sys

from controlplane.launcher.errors import LaunchError, from_os_error


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m controlplane.launcher", description="Run Galley on this machine.")
    parser.add_argument("action", choices=("up", "down"))
    action = parser.parse_args().action
    from controlplane.config import ConfigurationError

    try:
        if action == "up":
            from controlplane.launcher import up

            return up.run()
        from controlplane.launcher import down

        return down.run()
    except ConfigurationError as error:
        problem = LaunchError(str(error), "Correct or unset the environment variable, then run it again.")
    except LaunchError as error:
        problem = error
    except OSError as error:
        problem = from_os_error(error)
    except KeyboardInterrupt:
        return 130
    print(f"error: {problem}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
