"""First thing that runs, on whatever Python there is: `bootstrap.py [--dev] [--no-frontend] ARGUMENTS...`

Finds Python 3.11 or newer, sets up what is missing (`.venv/`, packages, front end) and goes on as
`.venv/bin/python ARGUMENTS...`. This file keeps to syntax that Python 2.7 and 3.4 can parse, so that an old Python
gets a clear answer; everything else is in `environment.py`.
"""

import os
import subprocess
import sys

OLDEST = (3, 11)
NEWER_NAMES = ("python3.13", "python3.12", "python3.11")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

if sys.version_info[:2] < OLDEST:
    PROBE = "import sys; sys.exit(sys.version_info[:2] < (3, 11))"
    for NAME in NEWER_NAMES:
        try:
            with open(os.devnull, "w") as NOWHERE:
                FOUND = subprocess.call([NAME, "-c", PROBE], stdout=NOWHERE, stderr=NOWHERE) == 0
        except OSError:
            FOUND = False
        if FOUND:
            os.execvp(NAME, [NAME, os.path.abspath(__file__)] + sys.argv[1:])
    sys.stderr.write(
        "error: Galley needs Python %d.%d or newer, and this is %s\n"
        "  Install Python 3.11, 3.12 or 3.13, or name one: make up PYTHON=/path/to/python3.12\n"
        % (OLDEST + (sys.version.split()[0],))
    )
    sys.exit(1)

sys.path[0] = ROOT  # in place of this folder, whose module names are not meant to be top-level ones

from controlplane.launcher import environment  # noqa: E402

sys.exit(environment.main(sys.argv[1:]))
