"""`make up` once the environment stands: services, tables, model, processes, a first token; then watching over them."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from types import FrameType

from controlplane.config import GalleySettings, home, settings
from controlplane.launcher import connections, programs
from controlplane.launcher.environment import require_space
from controlplane.launcher.errors import LaunchError
from controlplane.launcher.instance import Instance, require_free_port
from controlplane.launcher.postgres import EmbeddedPostgres
from controlplane.launcher.progress import Progress
from controlplane.launcher.readiness import Readiness
from controlplane.launcher.stopping import stop_leftovers, stop_supervised
from controlplane.launcher.supervisor import Supervisor
from controlplane.launcher.tasks import Tasks
from controlplane.launcher.valkey import EmbeddedValkey
from controlplane.running import publish_services, withdraw_services
from workers.home import Home
from workers.manifest import MANIFEST_NAME

HOME_BYTES = 1024**3
"""Free space asked for in the data folder: the database, the model, logs."""
_TICK_S = 0.2
_ASK_EVERY_S = 0.5
_SLOW_AFTER_S = 120.0
_HEAD_START_S = 6.0


class StopRequested(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP. Not an Exception: nothing on the way may take it for a failure."""


def run() -> int:
    """Until somebody stops it. Raises LaunchError."""
    return Launcher(settings(), home()).run()


class Launcher:
    def __init__(self, config: GalleySettings, data: Home) -> None:
        self._settings = config
        self._home = data
        self._progress = Progress()
        self._instance = Instance(data)
        self._supervisor = Supervisor(data, self._instance.registry, self._say)
        self._tasks = Tasks(self._instance.registry, data.logs)
        self._env: dict[str, str] = {}
        self._stopping = False

    def run(self) -> int:
        started = time.monotonic()
        require_space(self._home.root, HOME_BYTES)
        self._instance.take()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:  # `nohup make up`
                signal.signal(signum, self._on_signal)
        try:
            self._launch(started)
            while True:
                self._supervisor.tick()
                time.sleep(_TICK_S)
        except StopRequested:
            return 0
        finally:
            self._stopping = True  # from here on a second Ctrl-C changes nothing
            self._stop()

    def _launch(self, started: float) -> None:
        left = stop_leftovers(self._instance, engines=False)
        if left:
            self._say(f"stopped {left} processes that an earlier run had left behind")
        require_free_port(self._settings.host, self._settings.port)
        new_model = not (self._home.models / programs.MODEL / MANIFEST_NAME).exists()
        fetch = self._in_background(self._fetch_model) if new_model else None
        database_url, redis_url = self._services()
        self._env = programs.environment(self._settings, self._home, database_url=database_url, redis_url=redis_url)
        publish_services(self._home, database_url=database_url, redis_url=redis_url)
        if fetch is None:
            self._prepare("Database, pages and accounts", "migrate", "static", "accounts", "deploy")
        else:
            self._prepare("Database, pages and accounts", "migrate", "static", "accounts")
            fetch()
            self._prepare("First deployment", "deploy")
        self._start_processes()
        url = self._wait_for_token()
        self._supervisor.ready = True
        self._show_first_run()
        self._say(f"Galley is ready: {url} ({time.monotonic() - started:.0f} s)")

    def _services(self) -> tuple[str, str]:
        """URLs of PostgreSQL and Valkey: the ones named in the environment, else our own, started side by side."""
        database_url, redis_url = self._settings.database_url, self._settings.redis_url
        if database_url:
            connections.require_database(database_url)
        if redis_url:
            connections.require_redis(redis_url)
        with self._progress.step("PostgreSQL and Valkey") as step:
            valkey = None if redis_url else self._start_valkey()
            postgres = None if database_url else self._start_postgres()
            if valkey is not None:
                redis_url = valkey()
            if postgres is not None:
                database_url = postgres()
            step.update("running" if valkey or postgres else "the ones in DATABASE_URL and REDIS_URL")
        return database_url, redis_url

    def _start_valkey(self) -> Callable[[], str]:
        """Starts it; the function returned waits until it answers and gives its URL."""
        valkey = EmbeddedValkey(self._home)
        valkey.prepare()
        process = self._supervisor.start(valkey.command())

        def wait() -> str:
            valkey.wait_ready(process, log=self._home.logs / "valkey.log")
            return valkey.url

        return wait

    def _start_postgres(self) -> Callable[[], str]:
        """Starts it; the function returned waits until it answers, sees to our database and gives its URL."""
        postgres = EmbeddedPostgres(self._home)
        pid = postgres.foreign_pid(None)  # what an earlier launcher left has been stopped by now
        if pid is not None:
            raise LaunchError(
                f"a PostgreSQL that Galley did not start (process {pid}) uses {postgres.data}",
                "Stop it, or choose another GALLEY_HOME.",
            )
        postgres.prepare()
        process = self._supervisor.start(postgres.command())

        def wait() -> str:
            postgres.wait_ready(process, log=self._home.logs / "postgres.log")
            postgres.create_database()
            return postgres.url

        return wait

    def _prepare(self, name: str, *steps: str) -> None:
        with self._progress.step(name) as step:
            command = programs.module(self._env, "prepare", "controlplane.launcher.prepare", *steps)
            self._tasks.run(command, each_line=step.update)
            step.detail = ""

    def _fetch_model(self) -> None:
        env = programs.environment(self._settings, self._home, database_url="", redis_url="")
        with self._progress.step(f"Model {programs.MODEL}") as step:
            self._tasks.run(programs.manage(env, "model", "models", "add", programs.MODEL), each_line=step.update)
            step.detail = ""

    def _in_background(self, work: Callable[[], None]) -> Callable[[], None]:
        """Start `work` in a thread; the function returned waits for it and raises what it raised."""
        failures: list[LaunchError | OSError] = []

        def guarded() -> None:
            try:
                work()
            except (LaunchError, OSError) as error:
                failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()

        def wait() -> None:
            while thread.is_alive():  # in short waits, so that a signal is seen
                thread.join(_TICK_S)
                self._supervisor.tick()
            if failures:
                raise failures[0]

        return wait

    def _start_processes(self) -> None:
        """What leads to the first token has the machine to itself until engines are being loaded."""
        with self._progress.step("Processes") as step:
            first, later = programs.supervised(self._settings, self._home, self._env)
            for command in first:
                self._supervisor.start(command)
            step.update(", ".join(command.name for command in first))
            head_start_ends = time.monotonic() + _HEAD_START_S
            while not self._instance.engines() and time.monotonic() < head_start_ends:
                self._supervisor.tick()
                time.sleep(_TICK_S)
            for command in later:
                self._supervisor.start(command)
            step.update(", ".join(self._supervisor.names()))

    def _wait_for_token(self) -> str:
        """Until the gateway has seen a token come through both workers; its URL."""
        readiness = Readiness(self._settings.host, self._settings.port)
        warned = time.monotonic() + _SLOW_AFTER_S
        with self._progress.step("A first token, end to end") as step:
            while not readiness.check():
                self._supervisor.tick()
                step.update(readiness.detail)
                if time.monotonic() > warned:
                    warned = float("inf")
                    self._say(f"this takes longer than usual ({readiness.detail}); logs: {self._home.logs}")
                time.sleep(_ASK_EVERY_S)
            step.detail = ""
        for problem in readiness.failing:
            self._say(f"not ready yet: {problem}")
        return readiness.url

    def _show_first_run(self) -> None:
        """Once per data folder, also where an earlier run made the secrets and got no further."""
        shown = self._home.state / "first-run-shown"
        if shown.exists():
            return
        try:
            content = json.loads(self._home.first_run.read_text())
        except FileNotFoundError:
            return  # the database knew an administrator already: there was nothing to write
        self._say("")
        self._say(f"  user      {content['admin_user']}")
        self._say(f"  password  {content['admin_password']}")
        self._say(f"  API key   {content['api_key']}")
        self._say(f"  This is shown once; it is kept in {self._home.first_run}, readable by you only.")
        self._say("")
        shown.touch()

    def _say(self, text: str) -> None:
        self._progress.line(text)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        if not self._stopping:
            self._stopping = True
            raise StopRequested

    def _stop(self) -> None:
        self._tasks.kill_all()
        if self._supervisor.names() or self._instance.engines():
            with self._progress.step("Stopping"):
                stop_supervised(self._supervisor, self._instance, self._request_engine_stop)
        withdraw_services(self._home)
        self._instance.release()

    def _request_engine_stop(self, timeout_s: float) -> None:
        command = programs.module(self._env, "stop-node", "controlplane.launcher.prepare", "stop-node")
        try:
            self._tasks.run(command, timeout_s=timeout_s)
        except (LaunchError, subprocess.TimeoutExpired) as error:
            self._say(f"the node agent could not be asked to stop its engines ({error}); ending them directly")
