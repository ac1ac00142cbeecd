"""`make format`: safe fixes, then formatting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    for arguments in (("check", "--fix-only"), ("format",)):
        subprocess.run([sys.executable, "-m", "ruff", *arguments], cwd=ROOT, check=True)
