"""Django's settings under pytest: a private data folder, and the addresses that `services` will listen on.

pytest-django imports this before any conftest runs, which is the one moment early enough: `controlplane.config` reads
the environment once. Nothing is started here; a unit test pays for a temporary folder only.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from controlplane.launcher.postgres import EmbeddedPostgres
from controlplane.launcher.valkey import EmbeddedValkey
from workers.home import Home

for _name in [name for name in os.environ if name.startswith("GALLEY_")]:
    del os.environ[_name]

HOME = Home(Path(tempfile.mkdtemp(prefix="galley-test-")).resolve())
POSTGRES = EmbeddedPostgres(HOME)
VALKEY = EmbeddedValkey(HOME)
VALKEY.prepare()  # picks the port
_OWNER_PID = os.getpid()


def _remove_home() -> None:
    if os.getpid() == _OWNER_PID:  # not in a child that was forked off
        shutil.rmtree(HOME.root, ignore_errors=True)


atexit.register(_remove_home)

os.environ["GALLEY_HOME"] = str(HOME.root)
os.environ["GALLEY_KERNELS_CACHE"] = str(Path(__file__).resolve().parents[1] / "build" / "kernels")
os.environ["DATABASE_URL"] = POSTGRES.url
os.environ["REDIS_URL"] = VALKEY.url
os.environ["DJANGO_SETTINGS_MODULE"] = "controlplane.settings"  # for processes that tests start

from controlplane.settings import *  # noqa: E402, F403
